import React from "react";
import { getOperations } from "./api";
import { count, plural, short, time } from "./format";
import { Shown, Tag, useLoaded, When } from "./parts";

const REFRESH_MS = 10_000;

/** What goes on besides pushes: deletions, locks, leases. */
export function OperationsPage(props: { conn: string }): React.ReactElement {
  const loaded = useLoaded(() => getOperations(props.conn), [props.conn], REFRESH_MS);
  return (
    <Shown loaded={loaded}>
      {(found) => (
        <section>
          <h2>Deletion</h2>
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
          {found.dead_letters.length > 0 && (
            <List
              head={["Dead letter", "Table", "Messages", "Since", "Last error"]}
              rows={found.dead_letters.map((one) => [
                <code>{short(one.dead_id)}</code>,
                one.table,
                count(one.messages),
                <When ms={one.dead_ms} />,
                one.error,
              ])}
            />
          )}
          <h2>Locks</h2>
          <List
            head={["Table", "Lock", "From", "Before", "Held by", "Priority", "Lease ends"]}
            rows={found.locks.map((one) => [
              one.table,
              <React.Fragment>
                {one.lock_type} {one.revoked_by && <Tag kind="seg-red">revoked by {one.revoked_by}</Tag>}
              </React.Fragment>,
              time(one.start_ms),
              time(one.end_ms),
              <code>{one.group}</code>,
              count(one.priority),
              <When ms={one.lease_until_ms} />,
            ])}
          />
          <h2>Readers’ leases</h2>
          <List
            head={["Table", "Reader", "Since"]}
            rows={found.leases.map((one) => [one.table, <code>{one.owner}</code>, <When ms={one.taken_ms} />])}
          />
        </section>
      )}
    </Shown>
  );
}

function List(props: { head: string[]; rows: React.ReactNode[][] }): React.ReactElement {
  if (props.rows.length === 0) return <p className="seg-muted">None.</p>;
  return (
    <div className="seg-wide">
      <table>
        <thead>
          <tr>
            {props.head.map((text) => (
              <th key={text}>{text}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((cells, row) => (
            <tr key={row}>
              {cells.map((cell, column) => (
                <td key={column}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
