import React from "react";
import { getSegments, getTimeline, type Block, type EntryRow, type Stretch } from "./api";
import { Points } from "./compare";
import { count, plural, short, size, span } from "./format";
import { Grid, Pages, Shown, Tag, useLoaded } from "./parts";

const LIMIT = 50;
const WIDTH = 1000;
const HEIGHT = 190;
const GROUND = 200;
const ALL: Stretch = { start: null, end: null, asOf: null };

type Props = { conn: string; table: string; state: string; entries: EntryRow[] };

/** Segments as blocks: time from left to right, size as height. A click on one looks at its time only. They are asked
 * for anew when `state`, which tells the lineage, is another one. */
export function SegmentsByTime(props: Props): React.ReactElement {
  const { conn, table } = props;
  const [stretch, setStretch] = React.useState<Stretch>(ALL);
  const loaded = useLoaded(() => getTimeline(conn, table, stretch), [stretch, props.state]);
  const day = (key: "start" | "end", text: string) =>
    setStretch({ ...stretch, [key]: text ? Date.parse(`${text}T00:00:00Z`) : null });
  const given = (ms: number | null) => (ms === null ? "" : new Date(ms).toISOString().slice(0, 10));
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
              <Picture blocks={found.blocks} zoom={(one) => setStretch({ ...stretch, start: one.start_ms, end: one.end_ms })} />
            )}
          </React.Fragment>
        )}
      </Shown>
      <List conn={conn} table={table} stretch={stretch} state={props.state} />
    </section>
  );
}

const sum = (blocks: Block[], of: (block: Block) => number): number => blocks.reduce((all, one) => all + of(one), 0);

function Picture(props: { blocks: Block[]; zoom: (block: Block) => void }): React.ReactElement {
  const { blocks } = props;
  const first = Math.min(...blocks.map((one) => one.start_ms));
  const last = Math.max(...blocks.map((one) => one.end_ms));
  const across = (ms: number): number => ((ms - first) / Math.max(1, last - first)) * WIDTH;
  const piles = new Map<string, Block[]>();
  for (const one of blocks) {
    const key = `${one.start_ms}/${one.end_ms}`;
    piles.set(key, [...(piles.get(key) ?? []), one]);
  }
  const tallest = Math.max(1, ...[...piles.values()].map((pile) => sum(pile, (one) => one.totals.bytes)));
  return (
    <figure className="seg-picture">
      <svg viewBox={`0 0 ${WIDTH} ${GROUND}`} preserveAspectRatio="none" role="img" aria-label="Segments by time and size">
        {[...piles.values()].flatMap((pile) => {
          let below = 0;
          return pile.map((one) => {
            const tall = Math.max(1.5, (one.totals.bytes / tallest) * HEIGHT);
            below += tall;
            return (
              <rect
                key={`${one.start_ms} ${one.end_ms} ${one.state}`}
                className={one.state}
                x={across(one.start_ms)}
                width={Math.max(1, across(one.end_ms) - across(one.start_ms) - 0.5)}
                y={GROUND - below}
                height={Math.max(1, tall - 0.4)}
                onClick={() => props.zoom(one)}
              >
                <title>{`${span(one.start_ms, one.end_ms)}: ${plural(one.totals.segments, "segment")} ${one.state}\n${plural(one.totals.rows, "row")}, ${size(one.totals.bytes)}`}</title>
              </rect>
            );
          });
        })}
      </svg>
      <figcaption>
        {span(first, last)}; the tallest is {size(tallest)}
      </figcaption>
    </figure>
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
