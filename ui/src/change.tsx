import React from "react";
import { dagOf, getPreview, type Connections, type EntryRow, type Preview } from "./api";
import { count, plural, short, size } from "./format";
import { Shown, useLoaded } from "./parts";
import { RunDialog } from "./run";

type Props = { conn: string; table: string; entry: EntryRow; known: Connections; done: () => void; close: () => void };

/** Roll an entry back, or bring it back: what would change in numbers, a name to type, and the run until its end. */
export function Change(props: Props): React.ReactElement {
  const { conn, table, entry, known } = props;
  const back = entry.state === "REVERTED";
  const verb = back ? "Bring back" : "Roll back";
  const preview = useLoaded(() => getPreview(conn, table, entry.entry_id), [entry.entry_id]);
  const conf = (shown: Preview) => ({
    table,
    entry_id: entry.entry_id,
    segments_conn_id: conn,
    allow_empty: shown.rows_after === 0,
    dry_run: false,
  });
  return (
    <RunDialog
      label={`${verb} ${table}`}
      title={
        <React.Fragment>
          {verb} <code>{short(entry.entry_id)}</code> of {table}
        </React.Fragment>
      }
      verb={verb}
      dag={dagOf(back ? known.unrevert_dag_id : known.rollback_dag_id, table)}
      conf={preview.value === null || preview.value.refused !== null ? null : conf(preview.value)}
      word={table}
      good="Done: readers see it now."
      bad="It failed, and its log says why. Readers see what they saw before, unless the log says otherwise."
      done={props.done}
      close={props.close}
    >
      <Shown loaded={preview}>{(shown) => <Numbers preview={shown} />}</Shown>
    </RunDialog>
  );
}

function Numbers(props: { preview: Preview }): React.ReactElement {
  const { preview } = props;
  if (preview.refused !== null)
    return (
      <div className="seg-note seg-bad" role="alert">
        {preview.refused}
      </div>
    );
  return (
    <React.Fragment>
      <p className="seg-change">
        {count(preview.rows_before)} rows → <b>{count(preview.rows_after)} rows</b>
      </p>
      {preview.rows_after === 0 && (
        <p className="seg-red seg-change" role="alert">
          The table would be EMPTY.
        </p>
      )}
      <p className="seg-muted">
        {size(preview.bytes_before)} → {size(preview.bytes_after)}; {plural(preview.reappearing, "named segment")} visible again,{" "}
        {count(preview.hidden)} hidden
      </p>
    </React.Fragment>
  );
}
