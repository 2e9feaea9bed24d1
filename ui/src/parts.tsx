import React from "react";
import { address, Waiting, type Author, type Running } from "./api";
import { ago, count, short, time } from "./format";

/** What a request has come to: nothing yet, its answer, or why there is none. */
export type Loaded<T> = { value: T | null; error: string | null; waiting: string | null; again: () => void };

const ASK_AGAIN_MS = 300;

/** Ask for something, and again every so many milliseconds. What was there stays while it is asked for anew. */
export function useLoaded<T>(load: () => Promise<T>, keys: unknown[], everyMs = 0): Loaded<T> {
  const [value, setValue] = React.useState<T | null>(null);
  const [error, setError] = React.useState<string | null>(null);
  const [waiting, setWaiting] = React.useState<string | null>(null);
  const [turn, setTurn] = React.useState(0);
  const again = () => setTurn((number) => number + 1);
  React.useEffect(() => setValue(null), keys);
  React.useEffect(() => {
    let wanted = true;
    let timer = everyMs ? window.setTimeout(again, everyMs) : 0;
    load().then(
      (found) => {
        if (!wanted) return;
        setValue(found);
        setError(null);
        setWaiting(null);
      },
      (problem: unknown) => {
        if (!wanted) return;
        const said = problem instanceof Error ? problem.message : String(problem);
        setError(problem instanceof Waiting ? null : said);
        setWaiting(problem instanceof Waiting ? said : null);
        if (!(problem instanceof Waiting)) return;
        window.clearTimeout(timer);
        timer = window.setTimeout(again, ASK_AGAIN_MS);
      },
    );
    return () => {
      wanted = false;
      window.clearTimeout(timer);
    };
  }, [...keys, turn]);
  return { value, error, waiting, again };
}

/** What is loaded, or that it is on its way, or why it does not come. */
export function Shown<T>(props: { loaded: Loaded<T>; children: (value: T) => React.ReactNode }): React.ReactElement {
  const { value, error, waiting, again } = props.loaded;
  return (
    <React.Fragment>
      {error !== null && (
        <div className="seg-note seg-bad" role="alert">
          {error} <button onClick={again}>Try again</button>
        </div>
      )}
      {value !== null ? (
        props.children(value)
      ) : error === null ? (
        <p className="seg-muted" role="status">
          {waiting ?? "Loading…"}
        </p>
      ) : null}
    </React.Fragment>
  );
}

/** A long search is asked for once, when the typing has stopped. */
export function useSettled<T>(value: T, afterMs: number): T {
  const [settled, setSettled] = React.useState(value);
  React.useEffect(() => {
    const timer = window.setTimeout(() => setSettled(value), afterMs);
    return () => window.clearTimeout(timer);
  }, [value]);
  return settled;
}

/** A table with a head, which scrolls sideways where it does not fit. */
export function Grid(props: { label: string; head: React.ReactNode[]; numbers?: number[]; rows: React.ReactNode[][] }): React.ReactElement {
  const side = (column: number) => (props.numbers?.includes(column) ? "seg-number" : "");
  if (props.rows.length === 0) return <p className="seg-muted">None.</p>;
  return (
    <div className="seg-wide" role="region" aria-label={props.label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {props.head.map((text, column) =>
              text === "" ? (
                <td key={column} />
              ) : (
                <th key={column} scope="col" className={side(column)}>
                  {text}
                </th>
              ),
            )}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((cells, row) => (
            <tr key={row}>
              {cells.map((cell, column) => (
                <td key={column} className={side(column)}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Things that somebody should know before anything else. */
export function Banners(props: { texts: React.ReactNode[]; bad?: boolean }): React.ReactElement {
  return (
    <React.Fragment>
      {props.texts.map((text, number) => (
        <div key={number} className={`seg-note ${props.bad ? "seg-bad" : "seg-warn"}`} role="alert">
          {text}
        </div>
      ))}
    </React.Fragment>
  );
}

export function Tag(props: { kind: string; children?: React.ReactNode }): React.ReactElement {
  return <span className={`seg-tag ${props.kind}`}>{props.children ?? props.kind}</span>;
}

/** Who did it, with the way to the DAG run where there is one. */
export function By(props: { author: Author | null }): React.ReactElement {
  const { author } = props;
  if (author === null) return <span className="seg-muted">–</span>;
  if (author.dag_id === null || author.run_id === null) return <code>{author.identity}</code>;
  const run = `dags/${encodeURIComponent(author.dag_id)}/runs/${encodeURIComponent(author.run_id)}`;
  return (
    <a href={address(run)} title={author.identity}>
      {author.dag_id} · {author.run_id}
    </a>
  );
}

/** A push in progress: who makes it, or its entry where nobody said. */
export function Push(props: { push: Running }): React.ReactElement {
  const { push } = props;
  return push.by === null ? <code title={push.entry_id}>{short(push.entry_id)}</code> : <By author={push.by} />;
}

export function When(props: { ms: number | null }): React.ReactElement {
  if (props.ms === null) return <span className="seg-muted">–</span>;
  return (
    <time dateTime={new Date(props.ms).toISOString()} title={`${time(props.ms)} UTC`}>
      {ago(props.ms)}
    </time>
  );
}

/** The parts of a long list. */
export function Pages(props: {
  offset: number;
  limit: number;
  total: number;
  go: (offset: number) => void;
  names?: [string, string];
}): React.ReactElement | null {
  const { offset, limit, total, go } = props;
  const [back, forth] = props.names ?? ["Previous", "Next"];
  if (total <= limit) return null;
  return (
    <div className="seg-bar">
      <button disabled={offset === 0} onClick={() => go(Math.max(0, offset - limit))}>
        {back}
      </button>
      <span className="seg-muted">
        {count(offset + 1)}–{count(Math.min(offset + limit, total))} of {count(total)}
      </span>
      <button disabled={offset + limit >= total} onClick={() => go(offset + limit)}>
        {forth}
      </button>
    </div>
  );
}
