import React from "react";
import { getDiff, type Came, type EntryRow } from "./api";
import { count, plural, short, size, time } from "./format";
import { Shown, useLoaded } from "./parts";

const NOW = "now";

type Props = { conn: string; table: string; entries: EntryRow[] };

/** What came and went between two entries, or an entry and now. */
export function Compare(props: Props): React.ReactElement | null {
  const [open, setOpen] = React.useState(false);
  const completed = props.entries.filter((entry) => entry.state === "COMPLETED");
  if (completed.length === 0) return null;
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Compare two entries</summary>
      {open && <Chosen {...props} entries={completed} />}
    </details>
  );
}

function Chosen(props: Props): React.ReactElement {
  const { conn, table, entries } = props;
  const [before, setBefore] = React.useState((entries[1] ?? entries[0])?.entry_id ?? NOW);
  const [after, setAfter] = React.useState(NOW);
  const loaded = useLoaded(() => getDiff(conn, table, before, after), [before, after]);
  return (
    <React.Fragment>
      <div className="seg-bar">
        <label>
          From <Points value={before} entries={entries} choose={setBefore} />
        </label>
        <label>
          To <Points value={after} entries={entries} choose={setAfter} />
        </label>
      </div>
      <Shown loaded={loaded}>
        {(found) => (
          <React.Fragment>
            <p className="seg-change">
              {count(found.before.rows)} rows → {count(found.after.rows)} rows
            </p>
            <div className="seg-two">
              <Change sign="+" kind="seg-plus" came={found.came} />
              <Change sign="−" kind="seg-minus" came={found.went} />
            </div>
          </React.Fragment>
        )}
      </Shown>
    </React.Fragment>
  );
}

/** Chooses an entry, or now. */
export function Points(props: { value: string; entries: EntryRow[]; choose: (point: string) => void }): React.ReactElement {
  return (
    <select value={props.value} onChange={(event) => props.choose(event.target.value)}>
      <option value={NOW}>now</option>
      {props.entries.map((entry) => (
        <option key={entry.entry_id} value={entry.entry_id}>
          right after {short(entry.entry_id)}, {time(entry.since_ms)}
        </option>
      ))}
    </select>
  );
}

function Change(props: { sign: string; kind: string; came: Came }): React.ReactElement {
  const { totals, names } = props.came;
  return (
    <div>
      <b className={props.kind}>
        {props.sign} {plural(totals.segments, "segment")}
      </b>
      , {count(totals.rows)} rows, {size(totals.bytes)}
      <ul>
        {names.map((name) => (
          <li key={name}>
            <code>{name}</code>
          </li>
        ))}
        {totals.segments > names.length && <li>and {count(totals.segments - names.length)} more</li>}
      </ul>
    </div>
  );
}
