import React from "react";
import { getSegments, getTable, type EntryRow, type SegmentRow, type TableDetail } from "./api";
import { count, plural, short, size, time } from "./format";
import { By, Pages, Shown, Tag, useLoaded, When } from "./parts";
import { Change } from "./change";

const LIMIT = 50;
const REFRESH_MS = 15_000;

/** One table: its lineage like a list of commits, its segments as a picture, its config. */
export function TablePage(props: { conn: string; table: string; dags: { revert: string; unrevert: string } }) {
  const [offset, setOffset] = React.useState(0);
  const [chosen, setChosen] = React.useState<EntryRow | null>(null);
  const load = () => getTable(props.conn, props.table, offset, LIMIT);
  const loaded = useLoaded(load, [props.conn, props.table, offset], REFRESH_MS);
  return (
    <section>
      <Shown loaded={loaded}>
        {(found) => (
          <React.Fragment>
            <Summary detail={found} />
            <h2>Lineage</h2>
            <Lineage detail={found} choose={setChosen} />
            <Pages offset={offset} limit={LIMIT} total={found.entries_total} go={setOffset} />
          </React.Fragment>
        )}
      </Shown>
      <h2>Segments by time</h2>
      <Timeline conn={props.conn} table={props.table} />
      {loaded.value && (
        <details>
          <summary>Config</summary>
          <pre>
            <code>{JSON.stringify(loaded.value.config, null, 2)}</code>
          </pre>
        </details>
      )}
      {chosen && (
        <Change
          conn={props.conn}
          table={props.table}
          entry={chosen}
          dag={chosen.state === "REVERTED" ? props.dags.unrevert : props.dags.revert}
          done={loaded.again}
          close={() => setChosen(null)}
        />
      )}
    </section>
  );
}

function Summary(props: { detail: TableDetail }): React.ReactElement {
  const row = props.detail.table;
  return (
    <React.Fragment>
      {row.dropped_by !== null && (
        <div className="seg-note seg-bad">
          The table was dropped. Rolling entry <code>{short(row.dropped_by)}</code> back brings it back.
        </div>
      )}
      <dl>
        <dt>Readers see</dt>
        <dd>
          {count(row.rows)} rows in {count(row.segments)} segments, {size(row.bytes)}
        </dd>
        <dt>Last push</dt>
        <dd>
          <When ms={row.since_ms} /> by <By author={row.by} />
        </dd>
        <dt>Can roll back until</dt>
        <dd>{row.rollback_until_ms === null ? "no longer" : `${time(row.rollback_until_ms)} UTC`}</dd>
      </dl>
    </React.Fragment>
  );
}

function Lineage(props: { detail: TableDetail; choose: (entry: EntryRow) => void }): React.ReactElement {
  return (
    <div className="seg-wide">
      <table>
        <thead>
          <tr>
            <th>Entry</th>
            <th>State</th>
            <th>Since</th>
            <th>By</th>
            <th className="seg-number">Replaced</th>
            <th className="seg-number">Brought</th>
            <th className="seg-number">Rows</th>
            <th className="seg-number">Size</th>
            <th>Action</th>
          </tr>
        </thead>
        <tbody>
          {props.detail.entries.map((entry) => (
            <tr key={entry.entry_id}>
              <td>
                <code title={entry.entry_id}>{short(entry.entry_id)}</code> {entry.is_latest && <Tag kind="visible">latest</Tag>}
              </td>
              <td>
                <Tag kind={entry.state} />
              </td>
              <td>
                <When ms={entry.since_ms} />
              </td>
              <td>
                <By author={entry.by} />
              </td>
              <td className="seg-number">
                {count(entry.segments_from)}
                {entry.overwrites > 0 && ` + ${plural(entry.overwrites, "stretch")} of time`}
              </td>
              <td className="seg-number">{count(entry.segments_to)}</td>
              <td className="seg-number">{count(entry.rows)}</td>
              <td className="seg-number">{size(entry.bytes)}</td>
              <td>
                <Action entry={entry} choose={props.choose} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Action(props: { entry: EntryRow; choose: (entry: EntryRow) => void }): React.ReactElement | null {
  const { entry, choose } = props;
  if (entry.state === "IN_PROGRESS") return null;
  if (entry.is_cleaning) return <span className="seg-muted">too old</span>;
  const name = entry.state === "REVERTED" ? "Bring back" : "Roll back";
  return (
    <button aria-label={`${name} entry ${short(entry.entry_id)}`} onClick={() => choose(entry)}>
      {name}…
    </button>
  );
}

/** Segments as blocks: time from left to right, size as height. A click on one looks at its time only. */
function Timeline(props: { conn: string; table: string }): React.ReactElement {
  const [range, setRange] = React.useState<[number | null, number | null]>([null, null]);
  const load = () => getSegments(props.conn, props.table, range[0], range[1]);
  const loaded = useLoaded(load, [props.conn, props.table, range[0], range[1]]);
  const day = (at: 0 | 1, text: string) => {
    const ms = text ? Date.parse(`${text}T00:00:00Z`) : null;
    setRange(at === 0 ? [ms, range[1]] : [range[0], ms]);
  };
  const given = (ms: number | null) => (ms === null ? "" : new Date(ms).toISOString().slice(0, 10));
  return (
    <React.Fragment>
      <div className="seg-bar">
        <label>
          From <input type="date" value={given(range[0])} onChange={(event) => day(0, event.target.value)} />
        </label>
        <label>
          Before <input type="date" value={given(range[1])} onChange={(event) => day(1, event.target.value)} />
        </label>
        <button onClick={() => setRange([null, null])}>All time</button>
        <Tag kind="visible" /> <Tag kind="standby" /> <span className="seg-tag">overshadowed</span>
      </div>
      <Shown loaded={loaded}>
        {(found) => (
          <React.Fragment>
            <p className="seg-muted">
              {plural(found.total, "segment")}
              {found.total > found.segments.length && `; the first ${count(found.segments.length)} are drawn`}
            </p>
            {found.segments.length > 0 && <Picture segments={found.segments} zoom={(one) => setRange([one.start_ms, one.end_ms])} />}
          </React.Fragment>
        )}
      </Shown>
    </React.Fragment>
  );
}

const WIDTH = 1000;
const HEIGHT = 190;

function Picture(props: { segments: SegmentRow[]; zoom: (segment: SegmentRow) => void }): React.ReactElement {
  const first = Math.min(...props.segments.map((one) => one.start_ms));
  const last = Math.max(...props.segments.map((one) => one.end_ms));
  const across = (ms: number): number => ((ms - first) / Math.max(1, last - first)) * WIDTH;
  const piles = new Map<string, SegmentRow[]>();
  for (const one of props.segments) {
    const key = `${one.start_ms}/${one.end_ms}`;
    piles.set(key, [...(piles.get(key) ?? []), one]);
  }
  const total = (pile: SegmentRow[]): number => pile.reduce((sum, one) => sum + one.bytes, 0);
  const tallest = Math.max(1, ...[...piles.values()].map(total));
  return (
    <svg viewBox={`0 0 ${WIDTH} 200`} preserveAspectRatio="none" role="img" aria-label="Segments by time and size">
      {[...piles.values()].flatMap((pile) => {
        let below = 0;
        return pile.map((one) => {
          const tall = Math.max(1.5, (one.bytes / tallest) * HEIGHT);
          below += tall;
          return (
            <rect
              key={one.name}
              className={one.state}
              x={across(one.start_ms)}
              width={Math.max(1, across(one.end_ms) - across(one.start_ms) - 0.5)}
              y={200 - below}
              height={Math.max(1, tall - 0.4)}
              onClick={() => props.zoom(one)}
            >
              <title>{`${one.name}\n${one.state}, ${time(one.start_ms)} to ${time(one.end_ms)} UTC\n${plural(one.rows, "row")}, ${size(one.bytes)}`}</title>
            </rect>
          );
        });
      })}
    </svg>
  );
}
