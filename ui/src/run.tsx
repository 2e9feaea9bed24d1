import React from "react";
import { address, getDag, getRun, startRun } from "./api";

const LOOK_AGAIN_MS = 1_000;

type Props = {
  label: string;
  title: React.ReactNode;
  verb: string;
  dag: string;
  /** The run's configuration; null while there is nothing to confirm. */
  conf: Record<string, unknown> | null;
  /** What has to be typed first; null: the button alone confirms. */
  word: string | null;
  good: string;
  bad: string;
  done: () => void;
  close: () => void;
  children?: React.ReactNode;
};

/** A dialog that starts a DAG run as the user who clicks, once it is confirmed, and follows the run to its end. */
export function RunDialog(props: Props): React.ReactElement {
  const { dag, conf, word } = props;
  const dialog = React.useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = React.useState("");
  const [run, setRun] = React.useState<string | null>(null);
  const [state, setState] = React.useState("");
  const [problem, setProblem] = React.useState<string | null>(null);
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
  const start = async () => {
    setProblem(null);
    try {
      if ((await getDag(dag)).is_paused) throw new Error(`DAG ${dag} is paused. Unpause it, and try again.`);
      const made = await startRun(dag, conf ?? {});
      setState(made.state);
      setRun(made.dag_run_id);
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  const button = (
    <button className="seg-danger" disabled={word !== null && typed !== word} onClick={() => void start()}>
      {props.verb}
    </button>
  );
  return (
    <dialog ref={dialog} onClose={props.close} aria-label={props.label}>
      <h1>{props.title}</h1>
      {props.children}
      {conf !== null && run === null && word === null && button}
      {conf !== null && run === null && word !== null && (
        <label>
          Type <b>{word}</b> to confirm
          <br />
          <input value={typed} onChange={(event) => setTyped(event.target.value)} autoFocus /> {button}
        </label>
      )}
      {run !== null && <Progress dag={dag} run={run} state={state} good={props.good} bad={props.bad} />}
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

function Progress(props: { dag: string; run: string; state: string; good: string; bad: string }): React.ReactElement {
  const { state } = props;
  const href = address(`dags/${encodeURIComponent(props.dag)}/runs/${encodeURIComponent(props.run)}`);
  const kind = state === "success" ? "seg-good" : state === "failed" ? "seg-bad" : "";
  const said = state === "success" ? props.good : state === "failed" ? props.bad : `The run is ${state}…`;
  return (
    <div className={`seg-note ${kind}`} role="status">
      {said} <a href={href}>Look at the run</a>
    </div>
  );
}
