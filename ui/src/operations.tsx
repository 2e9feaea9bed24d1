import React from "react";
import { DeadLetterAction, RevokeAction } from "./actions";
import { getEvents, getOperations, type Connections, type DeadLetter, type Doctor, type Events, type LockRow, type Operations } from "./api";
import { count, plural, short, size, span, time } from "./format";
import { Banners, By, Grid, Shown, Tag, useLoaded, When } from "./parts";
import { link } from "./place";

const REFRESH_MS = 10_000;

/** What somebody is about to do: to dead letters, or to a lock. */
type Chosen = { letters: DeadLetter[]; purge: boolean } | { lock: LockRow };

/** What goes on besides pushes: deletions, locks, leases, and who did what. */
export function OperationsPage(props: { conn: string; known: Connections }): React.ReactElement {
  const [chosen, choose] = React.useState<Chosen | null>(null);
  const dialog = { conn: props.conn, known: props.known, close: () => choose(null) };
  const loaded = useLoaded(() => getOperations(props.conn), [props.conn], REFRESH_MS);
  const events = useLoaded(() => getEvents(props.conn, null), [props.conn], REFRESH_MS);
  return (
    <React.Fragment>
      <Shown loaded={loaded}>
        {(found) => (
          <React.Fragment>
            <Banners texts={found.problems} bad />
            <Deletion conn={props.conn} found={found} choose={choose} />
            <Held conn={props.conn} found={found} choose={choose} />
            <Offloads conn={props.conn} found={found} />
            <LastDoctor doctor={found.doctor} />
          </React.Fragment>
        )}
      </Shown>
      <h2>Audit trail</h2>
      <Shown loaded={events}>{(found) => <Trail conn={props.conn} events={found} />}</Shown>
      {chosen !== null && "lock" in chosen && <RevokeAction {...dialog} done={loaded.again} lock={chosen.lock} />}
      {chosen !== null && "letters" in chosen && <DeadLetterAction {...dialog} done={loaded.again} {...chosen} />}
    </React.Fragment>
  );
}

type Part = { conn: string; found: Operations; choose: (chosen: Chosen) => void };

function Deletion(props: Part): React.ReactElement {
  const { conn, found, choose } = props;
  const name = (table: string) => (table ? <a href={link({ conn, table })}>{table}</a> : "");
  return (
    <section>
      <h2>Deletion</h2>
      {found.dead > 0 && (
        <Banners
          bad
          texts={[
            <React.Fragment>
              {plural(found.dead, "deletion was", "deletions were")} given up. Mend what the last error says, then redrive them: that delivers
              them again.
            </React.Fragment>,
          ]}
        />
      )}
      <dl>
        <dt>To be deleted</dt>
        <dd>{plural(found.pending, "object")}</dd>
        <dt>Waiting for readers or a retry</dt>
        <dd>
          {count(found.waiting)}
          {found.next_due_ms ? `; next due ${time(found.next_due_ms)} UTC` : ""}
        </dd>
        <dt>Sweeps asked for</dt>
        <dd>{count(found.sweeps)}</dd>
        <dt>Given up</dt>
        <dd>{found.dead === 0 ? "none" : <Tag kind="seg-red">{plural(found.dead, "dead letter")}</Tag>}</dd>
      </dl>
      {found.waiting_tables.length > 0 && (
        <React.Fragment>
          <h3>What waits, by table</h3>
          {!found.is_whole && <p className="seg-muted">More waits than was read: the figures are of a part.</p>}
          <Grid
            label="What waits, by table"
            head={["Table", "Objects", "Size", "Oldest", "Because"]}
            numbers={[1, 2]}
            rows={found.waiting_tables.map((one) => [
              name(one.table),
              count(one.objects),
              size(one.bytes),
              <When ms={one.oldest_ms} />,
              one.reasons.join(", "),
            ])}
          />
        </React.Fragment>
      )}
      {found.dead_letters.length > 0 && (
        <React.Fragment>
          <h3>Dead letters</h3>
          <Grid
            label="Dead letters"
            head={["Id", "Table", "Messages", "Since", "Last error", ""]}
            numbers={[2]}
            rows={found.dead_letters.map((one) => [
              <code title={one.dead_id}>{short(one.dead_id)}</code>,
              name(one.table),
              count(one.messages),
              <When ms={one.dead_ms} />,
              <div className="seg-error">{one.error}</div>,
              <span className="seg-buttons">
                <button aria-label={`Redrive ${short(one.dead_id)}`} onClick={() => choose({ letters: [one], purge: false })}>
                  Redrive…
                </button>{" "}
                <button aria-label={`Purge ${short(one.dead_id)}`} onClick={() => choose({ letters: [one], purge: true })}>
                  Purge…
                </button>
              </span>,
            ])}
          />
          {found.dead_letters.length > 1 && (
            <p>
              <button onClick={() => choose({ letters: found.dead_letters, purge: false })}>
                Redrive all {count(found.dead_letters.length)} of this list…
              </button>
            </p>
          )}
        </React.Fragment>
      )}
    </section>
  );
}

function Held(props: Part): React.ReactElement {
  const { conn, found, choose } = props;
  return (
    <section>
      <h2>Locks</h2>
      <Grid
        label="Locks"
        head={["Table", "Lock", "Time", "Held by", "Priority", "Lease ends", ""]}
        numbers={[4]}
        rows={found.locks.map((one) => [
          <a href={link({ conn, table: one.table })}>{one.table}</a>,
          <React.Fragment>
            {one.lock_type} {one.revoked_by && <Tag kind="seg-red">revoked</Tag>}
            {one.revoked_by && <div className="seg-error">by {one.revoked_by}</div>}
          </React.Fragment>,
          span(one.start_ms, one.end_ms),
          one.by === null ? <code>{one.group}</code> : <By author={one.by} />,
          count(one.priority),
          one.lease_until_ms < Date.now() ? <Tag kind="seg-red">over</Tag> : <When ms={one.lease_until_ms} />,
          one.revoked_by === null && (
            <button aria-label={`Revoke lock ${short(one.lock_id)}`} onClick={() => choose({ lock: one })}>
              Revoke…
            </button>
          ),
        ])}
      />
      <h2>Readers’ leases</h2>
      <Grid
        label="Readers’ leases"
        head={["Table", "Reader", "Since"]}
        rows={found.leases.map((one) => [
          <a href={link({ conn, table: one.table })}>{one.table}</a>,
          <code>{one.owner}</code>,
          <When ms={one.taken_ms} />,
        ])}
      />
    </section>
  );
}

function Offloads(props: { conn: string; found: Operations }): React.ReactElement | null {
  const { conn, found } = props;
  if (found.offloads.length === 0) return null;
  return (
    <section>
      <h2>Offloads</h2>
      <Grid
        label="Offloads"
        head={["Table", "Copies to", "Segments", "Since", ""]}
        numbers={[2]}
        rows={found.offloads.map((one) => [
          <a href={link({ conn, table: one.table })}>{one.table}</a>,
          <code>{one.copies_to}</code>,
          count(one.segments),
          <When ms={one.since_ms} />,
          one.is_claimed ? "under way" : <Tag kind="standby">broken off: the next offload goes on with it</Tag>,
        ])}
      />
    </section>
  );
}

const SEVERITIES: Record<string, string> = { error: "seg-red", warning: "standby", note: "seg-muted" };

/** What the last look at the whole cluster has found. */
function LastDoctor(props: { doctor: Doctor | null }): React.ReactElement {
  const { doctor } = props;
  return (
    <section aria-label="Doctor">
      <h2>Doctor</h2>
      {doctor === null ? (
        <p className="seg-muted">
          No report was kept: the DAG <code>segments_doctor</code> looks at the whole cluster once a day, and <code>segments doctor --keep</code>{" "}
          does it now.
        </p>
      ) : (
        <React.Fragment>
          <p>
            <When ms={doctor.at_ms} /> by {doctor.actor}: {plural(doctor.tables, "table")}, {plural(doctor.znodes, "znode")} and{" "}
            {plural(doctor.objects, "object")} looked at.{" "}
            {Object.entries(doctor.counts).map(([severity, number]) => (
              <React.Fragment key={severity}>
                <Tag kind={number > 0 ? (SEVERITIES[severity] ?? "") : "seg-muted"}>{plural(number, severity)}</Tag>{" "}
              </React.Fragment>
            ))}
          </p>
          {doctor.findings.length > 0 && (
            <Grid
              label="Findings"
              head={["", "Check", "Where", "What"]}
              rows={doctor.findings.map((one) => [
                <Tag kind={SEVERITIES[one.severity] ?? ""}>{one.severity}</Tag>,
                one.check,
                <div className="seg-error">
                  <code>{one.subject}</code>
                </div>,
                <div className="seg-error">{one.detail}</div>,
              ])}
            />
          )}
        </React.Fragment>
      )}
    </section>
  );
}

/** Who did what, newest first. */
export function Trail(props: { conn: string; events: Events }): React.ReactElement {
  const { conn, events } = props;
  return (
    <React.Fragment>
      {events.hint !== null && <Banners texts={[events.hint]} />}
      <Grid
        label="Audit trail"
        head={["When", "Table", "What", "Entry", "Run", "Who", "Detail"]}
        rows={events.events.map((one) => [
          <When ms={one.at_ms} />,
          <a href={link({ conn, table: one.table })}>{one.table}</a>,
          one.action,
          <code title={one.entry_id}>{short(one.entry_id)}</code>,
          <By author={one.by} />,
          one.actor,
          one.detail,
        ])}
      />
    </React.Fragment>
  );
}
