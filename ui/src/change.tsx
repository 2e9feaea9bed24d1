import React from "react";
import { address, dagOf, getDag, getPreview, getRun, startRun, type Connections, type EntryRow, type Preview } from "./api";
import { count, plural, short, size } from "./format";
import { Shown, useLoaded } from "./parts";

const LOOK_AGAIN_MS = 1_000;

type Props = { conn: string; table: string; entry: EntryRow; known: Connections; done: () => void; close: () => void };

/** Roll an entry back, or bring it back: what would change in numbers, a name to type, and the run until its end. */
export function Change(props: Props): React.ReactElement {
  const dialog = React.useRef<HTMLDialogElement>(null);
  const back = props.entry.state === "REVERTED";
  const dag = dagOf(back ? props.known.unrevert_dag_id : props.known.rollback_dag_id, props.table);
  const [typed, setTyped] = React.useState("");
  const [run, setRun] = React.useState<string | null>(null);
  const [state, setState] = React.useState("");
  const [problem, setProblem] = React.useState<string | null>(null);
  const preview = useLoaded(() => getPreview(props.conn, props.table, props.entry.entry_id), [props.entry.entry_id]);
  React.useEffect(() => dialog.current?.showModal(), []);
  React.useEffect(() => {
    if (run === null || state === "success" || state === "failed") return;
    const timer = window.setTimeout(() => {
      getRun(dag, run).then(
        (found) => {
          setState(found.state);
          if (found.state === "success") props.done();
        },
        (error: Error) => setProblem(error.message),
      );
    }, LOOK_AGAIN_MS);
    return () => window.clearTimeout(timer);
  });
  const start = async (shown: Preview) => {
    setProblem(null);
    try {
      if ((await getDag(dag)).is_paused) throw new Error(`DAG ${dag} is paused. Unpause it, and try again.`);
      const conf = {
        table: props.table,
        entry_id: props.entry.entry_id,
        segments_conn_id: props.conn,
        allow_empty: shown.rows_after === 0,
        dry_run: false,
      };
      const made = await startRun(dag, conf);
      setState(made.state);
      setRun(made.dag_run_id);
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  const verb = back ? "Bring back" : "Roll back";
  return (
    <dialog ref={dialog} onClose={props.close} aria-label={`${verb} ${props.table}`}>
      <h1>
        {verb} <code>{short(props.entry.entry_id)}</code> of {props.table}
      </h1>
      <Shown loaded={preview}>
        {(shown) => (
          <React.Fragment>
            <Numbers preview={shown} />
            {shown.refused === null && run === null && (
              <label>
                Type <b>{props.table}</b> to confirm
                <br />
                <input value={typed} onChange={(event) => setTyped(event.target.value)} autoFocus />{" "}
                <button className="seg-danger" disabled={typed !== props.table} onClick={() => void start(shown)}>
                  {verb}
                </button>
              </label>
            )}
          </React.Fragment>
        )}
      </Shown>
      {run !== null && <Progress dag={dag} run={run} state={state} />}
      {problem !== null && (
        <div className="seg-note seg-bad" role="alert">
          {problem}
        </div>
      )}
      <p>
        <button onClick={() => dialog.current?.close()}>Close</button>
      </p>
    </dialog>
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

function Progress(props: { dag: string; run: string; state: string }): React.ReactElement {
  const href = address(`dags/${encodeURIComponent(props.dag)}/runs/${encodeURIComponent(props.run)}`);
  const kind = props.state === "success" ? "seg-good" : props.state === "failed" ? "seg-bad" : "";
  const said =
    props.state === "success"
      ? "Done: readers see it now."
      : props.state === "failed"
        ? "It failed, and its log says why. Readers see what they saw before, unless the log says otherwise."
        : `The run is ${props.state}…`;
  return (
    <div className={`seg-note ${kind}`} role="status">
      {said} <a href={href}>Look at the run</a>
    </div>
  );
}
