import React from "react";
import { getSegments, getTimeline, type Block, type EntryRow, type Stretch } from "./api";
import { Bars, type Bar } from "./bars";
import { Points } from "./compare";
import { count, END_MS, isAllTime, plural, short, size, span, START_MS } from "./format";
import { Grid, Pages, Shown, Tag, useLoaded } from "./parts";

const LIMIT = 50;
const ALL: Stretch = { start: null, end: null, asOf: null };

type Props = { conn: string; table: string; state: string; entries: EntryRow[] };

/** Segments as blocks: time from left to right, size as height. They are asked for anew when `state`, which tells the
 * lineage, is another one. */
export function SegmentsByTime(props: Props): React.ReactElement {
  const { conn, table } = props;
  const [stretch, setStretch] = React.useState<Stretch>(ALL);
  const loaded = useLoaded(() => getTimeline(conn, table, stretch), [stretch, props.state]);
  const day = (key: "start" | "end", text: string) =>
    setStretch({ ...stretch, [key]: text ? Date.parse(`${text}T00:00:00Z`) : null });
  const given = (ms: number | null) => (ms === null || ms >= END_MS ? "" : new Date(ms).toISOString().slice(0, 10));
  const show = (start: number, end: number) =>
    setStretch({ ...stretch, start: Math.max(START_MS, start), end: Math.min(END_MS, end) });
  const past = props.entries.filter((entry) => entry.state === "COMPLETED");
  return (
    <section aria-label="Segments by time">
      <h2>Segments by time</h2>
      <div className="seg-bar">
        <label>
          From <input type="date" value={given(stretch.start)} onChange={(event) => day("start", event.target.value)} />
        </label>
        <label>
          Before <input type="date" value={given(stretch.end)} onChange={(event) => day("end", event.target.value)} />
        </label>
        {past.length > 0 && (
          <label>
            As readers saw them{" "}
            <Points
              value={stretch.asOf ?? "now"}
              entries={past}
              choose={(point) => setStretch({ ...stretch, asOf: point === "now" ? null : point })}
            />
          </label>
        )}
        <button onClick={() => setStretch(ALL)}>All time</button>
        <span>
          <Tag kind="visible" /> <Tag kind="standby" /> <Tag kind="overshadowed" />
        </span>
      </div>
      <Shown loaded={loaded}>
        {(found) => (
          <React.Fragment>
            <p className="seg-muted">
              {plural(sum(found.blocks, (one) => one.totals.segments), "segment")}
              {found.is_merged && "; neighbouring time chunks are drawn as one"}
            </p>
            {found.blocks.length > 0 && (
              <React.Fragment>
                <Bars
                  label="Segments by time and size"
                  bars={piles(found.blocks)}
                  caption={extent(found.blocks)}
                  {...(isDated(found.blocks) && { choose: show })}
                />
                {isDated(found.blocks) && <Zoom blocks={found.blocks} show={show} />}
              </React.Fragment>
            )}
          </React.Fragment>
        )}
      </Shown>
      <List conn={conn} table={table} stretch={stretch} state={props.state} />
    </section>
  );
}

const extent = (blocks: Block[]): string =>
  span(Math.min(...blocks.map((one) => one.start_ms)), Math.max(...blocks.map((one) => one.end_ms)));

/** A table without a time column has one chunk, which is all of time. */
const isDated = (blocks: Block[]): boolean => blocks.every((one) => !isAllTime(one.start_ms, one.end_ms));

const sum = (blocks: Block[], of: (block: Block) => number): number => blocks.reduce((all, one) => all + of(one), 0);

/** The blocks of one time chunk drawn as one bar. */
function piles(blocks: Block[]): Bar[] {
  const found = new Map<string, Block[]>();
  for (const one of blocks) {
    const key = `${one.start_ms}/${one.end_ms}`;
    found.set(key, [...(found.get(key) ?? []), one]);
  }
  return [...found.values()].map((pile) => {
    const { start_ms, end_ms } = pile[0] as Block;
    const states = pile.map((one) => `${plural(one.totals.segments, "segment")} ${one.state} (${plural(one.totals.rows, "row")}, ${size(one.totals.bytes)})`);
    const parts = pile.map((one) => ({ kind: one.state, bytes: one.totals.bytes }));
    return { start: start_ms, end: end_ms, parts, text: `${span(start_ms, end_ms)}: ${states.join(", ")}` };
  });
}

/** What of the picture is shown: closer, farther, before and after, for those who do not drag. */
function Zoom(props: { blocks: Block[]; show: (start: number, end: number) => void }): React.ReactElement {
  const first = Math.min(...props.blocks.map((one) => one.start_ms));
  const last = Math.max(...props.blocks.map((one) => one.end_ms));
  const quarter = (last - first) / 4;
  const moves: [string, number, number][] = [
    ["Zoom in", quarter, -quarter],
    ["Zoom out", -2 * quarter, 2 * quarter],
    ["Earlier", -2 * quarter, -2 * quarter],
    ["Later", 2 * quarter, 2 * quarter],
  ];
  return (
    <div className="seg-bar">
      {moves.map(([text, before, after]) => (
        <button key={text} onClick={() => props.show(Math.floor(first + before), Math.ceil(last + after))}>
          {text}
        </button>
      ))}
      <span className="seg-muted">A click on a bar, or a drag over several, shows their time only.</span>
    </div>
  );
}

/** The segments by name, a part at a time. */
function List(props: { conn: string; table: string; stretch: Stretch; state: string }): React.ReactElement {
  const { conn, table, stretch } = props;
  const [open, setOpen] = React.useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>List of segments</summary>
      {open && <Listed key={JSON.stringify([stretch, props.state])} conn={conn} table={table} stretch={stretch} />}
    </details>
  );
}

function Listed(props: { conn: string; table: string; stretch: Stretch }): React.ReactElement {
  const { conn, table, stretch } = props;
  const [offset, setOffset] = React.useState(0);
  const loaded = useLoaded(() => getSegments(conn, table, stretch, offset, LIMIT), [offset]);
  return (
    <Shown loaded={loaded}>
      {(found) => (
        <React.Fragment>
          <Grid
            label="Segments"
            head={["Segment", "State", "Time", "Rows", "Size", "Version", "Entry"]}
            numbers={[3, 4, 5]}
            rows={found.segments.map((one) => [
              <code>{one.name}</code>,
              <Tag kind={one.state} />,
              span(one.start_ms, one.end_ms),
              count(one.rows),
              size(one.bytes),
              count(one.version),
              <code title={one.entry_id}>{short(one.entry_id)}</code>,
            ])}
          />
          <Pages offset={offset} limit={LIMIT} total={found.total} go={setOffset} />
        </React.Fragment>
      )}
    </Shown>
  );
}
