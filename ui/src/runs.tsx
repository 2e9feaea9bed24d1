import React from "react";
import { address, getEntriesOfRun, getEntry, getRun, type Connections, type EntryDetail, type EntryOfRun, type Validation } from "./api";
import { Change } from "./change";
import { count, plural, short, size } from "./format";
import { By, Grid, Shown, Tag, useLoaded, When } from "./parts";

const REFRESH_MS = 15_000;

type Props = { known: Connections; dag: string; run: string; task: string | null };

/** The pushes and rollbacks of a DAG run or of one of its tasks, and what has become of them. */
export function RunTab(props: Props): React.ReactElement {
  const { dag, run, task } = props;
  const loaded = useLoaded(() => getEntriesOfRun(dag, run, task), [dag, run, task], REFRESH_MS);
  return (
    <Shown loaded={loaded}>
      {(found) =>
        found.length === 0 ? (
          <p>{task === null ? "This run" : "This task"} has pushed, checked or rolled back no segments.</p>
        ) : (
          <React.Fragment>
            {found.map((named) => (
              <Fate key={named.entry_id} known={props.known} named={named} />
            ))}
          </React.Fragment>
        )
      }
    </Shown>
  );
}

function Fate(props: { known: Connections; named: EntryOfRun }): React.ReactElement {
  const { table, segments_conn_id: conn, entry_id } = props.named;
  const loaded = useLoaded(() => getEntry(conn, table, entry_id), [conn, table, entry_id], REFRESH_MS);
  const [changing, setChanging] = React.useState(false);
  const href = address(`plugin/segments#${new URLSearchParams({ conn, table })}`);
  return (
    <section className="seg-card">
      <h2>
        <a href={href}>{table}</a> <code title={entry_id}>{short(entry_id)}</code>
      </h2>
      <Shown loaded={loaded}>
        {(found) => (
          <React.Fragment>
            <p>
              <Tag kind={found.entry.state} /> <Outcome found={found} />
            </p>
            <p className="seg-muted">
              Brought {count(found.entry.brought.rows)} rows in {count(found.entry.brought.segments)} segments (
              {size(found.entry.brought.bytes)}), replaced {count(found.entry.segments_from)} segments.
              {found.after !== null && ` Right after it, readers saw ${count(found.after.rows)} rows.`}
            </p>
            {found.entry.state !== "IN_PROGRESS" && !found.entry.is_cleaning && (
              <button onClick={() => setChanging(true)}>{found.entry.state === "REVERTED" ? "Bring back…" : "Roll back…"}</button>
            )}
            {changing && (
              <Change
                conn={conn}
                table={table}
                entry={found.entry}
                known={props.known}
                done={loaded.again}
                close={() => setChanging(false)}
              />
            )}
          </React.Fragment>
        )}
      </Shown>
      {props.named.validations.map((one, number) => (
        <Checks key={number} validation={one} />
      ))}
    </section>
  );
}

/** The note of the run that made an entry, and the checks of what it has staged. */
export function RunOfEntry(props: { dag: string; run: string; entry: string }): React.ReactElement {
  const { dag, run, entry } = props;
  const loaded = useLoaded(() => Promise.all([getRun(dag, run), getEntriesOfRun(dag, run, null)]), [dag, run]);
  return (
    <Shown loaded={loaded}>
      {([told, entries]) => {
        const validations = entries.filter((one) => one.entry_id === entry).flatMap((one) => one.validations);
        return (
          <React.Fragment>
            <p>{told.note ? `Note of the run: ${told.note}` : "The run has no note."}</p>
            {validations.length === 0 && <p>Nothing was checked.</p>}
            {validations.map((one, number) => (
              <Checks key={number} validation={one} />
            ))}
          </React.Fragment>
        );
      }}
    </Shown>
  );
}

/** The checks of what was staged, those that failed first. */
function Checks(props: { validation: Validation }): React.ReactElement {
  const { rows, segments, findings } = props.validation;
  const failed = findings.filter((one) => !one.ok);
  const sorted = [...failed, ...findings.filter((one) => one.ok)];
  return (
    <section aria-label="Checks">
      <h3>
        {failed.length > 0
          ? `${count(failed.length)} of ${plural(findings.length, "check")} failed`
          : `${plural(findings.length, "check")} passed`}
      </h3>
      <p className="seg-muted">
        {plural(rows, "row")} in {plural(segments, "staged segment")} were checked before readers could see them.
      </p>
      <Grid
        label="List of checks"
        head={["", "Check", "Expected", "Found"]}
        rows={sorted.map((one) => [
          <Tag kind={one.ok ? "visible" : "seg-red"}>{one.ok ? "passed" : "failed"}</Tag>,
          <code>{one.check}</code>,
          one.expected,
          one.found,
        ])}
      />
    </section>
  );
}

function Outcome(props: { found: EntryDetail }): React.ReactElement {
  const { entry, replaced_by, visible_segments } = props.found;
  if (entry.state === "IN_PROGRESS") return <span>Readers do not see it yet.</span>;
  if (entry.state === "REVERTED")
    return (
      <span>
        Rolled back <When ms={entry.since_ms} /> by <By author={entry.settled_by} />.
      </span>
    );
  if (visible_segments > 0 && visible_segments === entry.segments_to) return <b>Visible now.</b>;
  return (
    <span>
      {visible_segments > 0 ? `Visible in part (${plural(visible_segments, "segment")}). ` : "Nothing of it is visible. "}
      {replaced_by.length > 0 && "Replaced by "}
      {replaced_by.slice(0, 5).map((one) => <code key={one}>{short(one)} </code>)}
      {replaced_by.length > 5 && `and ${count(replaced_by.length - 5)} more`}
    </span>
  );
}
