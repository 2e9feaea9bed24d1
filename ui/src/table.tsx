import React from "react";
import {
  getEntry,
  getEvents,
  getHistory,
  getTable,
  type Connections,
  type EntryRow,
  type History,
  type Storage,
  type TableDetail,
  type Totals,
} from "./api";
import { Bars } from "./bars";
import { Change } from "./change";
import { Compare } from "./compare";
import { count, plural, short, size, time } from "./format";
import { Trail } from "./operations";
import { By, Pages, Push, Shown, Tag, useLoaded, When } from "./parts";
import { RegionsPart } from "./regions";
import { RunOfEntry } from "./runs";
import { SegmentsByTime } from "./timeline";
import { UpsertPart } from "./upsert";

const LIMIT = 50;
const REFRESH_MS = 15_000;
/** Segments beyond which what readers saw after each push is computed only when somebody asks for it. */
const LARGE = 20_000;

const stored = (storage: Storage): number =>
  storage.visible.segments + storage.replaced.segments + storage.rolled_back.segments;

/** One table: what readers see, its lineage like a list of commits, its segments as a picture, its config. */
export function TablePage(props: { conn: string; table: string; known: Connections }): React.ReactElement {
  const { conn, table } = props;
  const [offset, setOffset] = React.useState(0);
  const [chosen, setChosen] = React.useState<EntryRow | null>(null);
  const loaded = useLoaded(() => getTable(conn, table, offset, LIMIT), [offset], REFRESH_MS);
  const newest = loaded.value?.entries.map((entry) => `${entry.entry_id} ${entry.state}`).join() ?? "";
  const [isWanted, setWanted] = React.useState(false);
  const isLarge = loaded.value !== null && stored(loaded.value.storage) > LARGE && !isWanted;
  const history = useLoaded<History>(
    () => (newest && !isLarge ? getHistory(conn, table, offset, LIMIT) : Promise.resolve({ after: {}, stored: {} })),
    [newest, isLarge],
  );
  const known = Object.keys(history.value?.after ?? {}).length;
  const isPart = !isLarge && known < (loaded.value?.entries.length ?? 0);
  React.useEffect(() => {
    if (isPart && known > 0) history.again();
  }, [known]);
  return (
    <section aria-label={`Table ${table}`}>
      <Shown loaded={loaded}>
        {(found) => (
          <React.Fragment>
            <Summary detail={found} />
            {history.value !== null && <StorageOverTime entries={found.entries} history={history.value} />}
            {found.table.upsert !== null && <UpsertPart upsert={found.table.upsert} />}
            {found.table.upsert !== null && <RegionsPart conn={conn} table={table} />}
            <h2>Lineage</h2>
            {isLarge && (
              <p>
                <button onClick={() => setWanted(true)}>Compute what readers saw after each push</button>{" "}
                <span className="seg-muted">The table is large, so this takes a while.</span>
              </p>
            )}
            <Lineage conn={conn} table={table} detail={found} history={history.value} choose={setChosen} />
            <Pages offset={offset} limit={LIMIT} total={found.entries_total} go={setOffset} names={["Newer", "Older"]} />
            {found.table.upsert === null && <Compare conn={conn} table={table} entries={found.entries} />}
            <SegmentsByTime conn={conn} table={table} state={newest} entries={found.table.upsert === null ? found.entries : []} />
            <Folded name="Audit trail">{() => <TableTrail conn={conn} table={table} />}</Folded>
            <Folded name="Config">
              {() => (
                <pre tabIndex={0}>
                  <code>{JSON.stringify(found.config, null, 2)}</code>
                </pre>
              )}
            </Folded>
          </React.Fragment>
        )}
      </Shown>
      {chosen && (
        <Change
          conn={conn}
          table={table}
          entry={chosen}
          known={props.known}
          done={loaded.again}
          close={() => setChosen(null)}
        />
      )}
    </section>
  );
}

/** What is asked for only when somebody opens it. */
export function Folded(props: { name: string; children: () => React.ReactNode }): React.ReactElement {
  const [open, setOpen] = React.useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{props.name}</summary>
      {open && props.children()}
    </details>
  );
}

function TableTrail(props: { conn: string; table: string }): React.ReactElement {
  const events = useLoaded(() => getEvents(props.conn, props.table), []);
  return <Shown loaded={events}>{(found) => <Trail conn={props.conn} events={found} />}</Shown>;
}

function Summary(props: { detail: TableDetail }): React.ReactElement {
  const row = props.detail.table;
  return (
    <React.Fragment>
      {row.dropped_by !== null && (
        <div className="seg-note seg-bad" role="alert">
          The table was dropped. Rolling entry <code>{short(row.dropped_by)}</code> back brings it back.
        </div>
      )}
      <dl className="seg-figures">
        <div>
          <dt>{row.upsert === null ? "Readers see" : "Stored rows, not valid ones among them"}</dt>
          <dd>
            <b>{count(row.rows)}</b> rows
          </dd>
          <dd className="seg-muted">
            {plural(row.segments ?? 0, "segment")}, {size(row.bytes)}
          </dd>
        </div>
        <div>
          <dt>Last push</dt>
          <dd>
            <When ms={row.since_ms} />
          </dd>
          {row.by !== null && (
            <dd>
              <By author={row.by} />
            </dd>
          )}
        </div>
        <div>
          <dt>Can roll back until</dt>
          <dd>{row.rollback_until_ms === null ? "no longer" : `${time(row.rollback_until_ms)} UTC`}</dd>
        </div>
        {row.failed !== null && (
          <div>
            <dt>Last push that failed</dt>
            <dd className="seg-red">
              <When ms={row.failed.since_ms} />
            </dd>
            <dd>
              <By author={row.failed.by} />
            </dd>
          </div>
        )}
        <div>
          <dt>In progress</dt>
          <dd>
            {row.running.length === 0
              ? "nothing"
              : row.running.map((push) => (
                  <div key={push.entry_id}>
                    <Push push={push} /> <When ms={push.since_ms} />
                  </div>
                ))}
          </dd>
        </div>
      </dl>
      <StorageBar storage={props.detail.storage} />
    </React.Fragment>
  );
}

/** How much of what is stored readers see, and why the rest is kept. */
function StorageBar(props: { storage: Storage }): React.ReactElement | null {
  const { visible, replaced, rolled_back, waiting_bytes } = props.storage;
  const parts: [string, string, number][] = [
    ["visible", "visible", visible.bytes],
    ["overshadowed", "kept for a rollback", replaced.bytes],
    ["standby", "rolled back, can be brought back", rolled_back.bytes],
    ["waiting", "waits for deletion", waiting_bytes],
  ];
  const all = parts.reduce((sum, [, , bytes]) => sum + bytes, 0);
  if (all === 0) return null;
  const shown = parts.filter(([, , bytes]) => bytes > 0);
  return (
    <figure className="seg-storage">
      <div className="seg-stack" aria-hidden="true">
        {shown.map(([kind, , bytes]) => (
          <span key={kind} className={kind} style={{ flexGrow: bytes }} />
        ))}
      </div>
      <figcaption>
        Storage:{" "}
        {shown.map(([kind, text, bytes]) => (
          <span key={kind} className="seg-legend">
            <i className={kind} /> {size(bytes)} {text}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}

/** What readers saw after each push, and what was stored besides, as far as it still is. */
function StorageOverTime(props: { entries: EntryRow[]; history: History }): React.ReactElement | null {
  const { after, stored } = props.history;
  const pushes = props.entries.filter((one) => one.state === "COMPLETED" && after[one.entry_id] && one.entry_id in stored);
  pushes.sort((one, other) => one.since_ms - other.since_ms);
  if (pushes.length < 2) return null;
  const now = Date.now();
  const bars = pushes.map((one, number) => {
    const seen = after[one.entry_id] as Totals;
    const kept = Math.max(0, (stored[one.entry_id] ?? 0) - seen.bytes);
    return {
      start: one.since_ms,
      end: pushes[number + 1]?.since_ms ?? now,
      parts: [
        { kind: "visible", bytes: seen.bytes },
        { kind: "overshadowed", bytes: kept },
      ],
      text: `From ${time(one.since_ms)} UTC: ${size(seen.bytes)} visible (${plural(seen.rows, "row")}), ${size(kept)} kept besides`,
    };
  });
  return (
    <Folded name="Storage over time">
      {() => <Bars label="Storage over time" bars={bars} caption="Visible, and kept besides as far as it was not deleted since" />}
    </Folded>
  );
}

type LineageProps = {
  conn: string;
  table: string;
  detail: TableDetail;
  history: History | null;
  choose: (entry: EntryRow) => void;
};

function Lineage(props: LineageProps): React.ReactElement {
  const { entries } = props.detail;
  if (entries.length === 0) return <p className="seg-muted">Nothing was pushed yet.</p>;
  return (
    <ol className="seg-log">
      {entries.map((entry) => (
        <Entry key={entry.entry_id} entry={entry} {...props} />
      ))}
    </ol>
  );
}

function Entry(props: LineageProps & { entry: EntryRow }): React.ReactElement {
  const { entry, history, conn, table } = props;
  const after = history?.after[entry.entry_id] ?? null;
  return (
    <li className={entry.state}>
      <div className="seg-head">
        <code title={entry.entry_id}>{short(entry.entry_id)}</code> <Tag kind={entry.state} />{" "}
        {entry.is_latest && <Tag kind="visible">latest</Tag>} <When ms={entry.since_ms} />{" "}
        {entry.by !== null && <By author={entry.by} />}
        {entry.settled_by !== null && (
          <span>
            rolled back by <By author={entry.settled_by} />
          </span>
        )}
      </div>
      <Action entry={entry} choose={props.choose} />
      <div className="seg-numbers">
        <span>
          <b className="seg-plus">+{count(entry.brought.rows)}</b> rows ({plural(entry.brought.segments, "segment")},{" "}
          {size(entry.brought.bytes)})
        </span>
        <Replaced entry={entry} />
        {after !== null && (
          <span>
            → readers saw <b>{count(after.rows)}</b> rows, {size(after.bytes)}
          </span>
        )}
      </div>
      <Folded name="From and to">{() => <Names conn={conn} table={table} entry={entry} />}</Folded>
      {entry.by?.dag_id && entry.by.run_id && <RunFolded dag={entry.by.dag_id} run={entry.by.run_id} entry={entry.entry_id} />}
    </li>
  );
}

function RunFolded(props: { dag: string; run: string; entry: string }): React.ReactElement {
  return <Folded name="Checks and note">{() => <RunOfEntry {...props} />}</Folded>;
}

function Replaced(props: { entry: EntryRow }): React.ReactElement | null {
  const { entry } = props;
  const time = entry.overwrites > 0 ? `, and ${plural(entry.overwrites, "stretch", "stretches")} of time` : "";
  if (entry.segments_from === 0) return time ? <span>replaced{time.replace(", and", "")}</span> : null;
  if (entry.replaced === null)
    return (
      <span>
        replaced {plural(entry.segments_from, "segment")}, of which some are gone{time}
      </span>
    );
  return (
    <span>
      <b className="seg-minus">−{count(entry.replaced.rows)}</b> rows ({plural(entry.segments_from, "segment")},{" "}
      {size(entry.replaced.bytes)}){time}
    </span>
  );
}

function Names(props: { conn: string; table: string; entry: EntryRow }): React.ReactElement {
  const { conn, table, entry } = props;
  const loaded = useLoaded(() => getEntry(conn, table, entry.entry_id), [entry.entry_id, entry.state]);
  const list = (names: string[], all: number) => (
    <ul>
      {names.map((name) => (
        <li key={name}>
          <code>{name}</code>
        </li>
      ))}
      {all > names.length && <li>and {count(all - names.length)} more</li>}
      {all === 0 && <li className="seg-muted">none</li>}
    </ul>
  );
  return (
    <Shown loaded={loaded}>
      {(found) => (
        <div className="seg-two">
          <div>
            From {list(found.segments_from, entry.segments_from)}
          </div>
          <div>
            To {list(found.segments_to, entry.segments_to)}
          </div>
        </div>
      )}
    </Shown>
  );
}

function Action(props: { entry: EntryRow; choose: (entry: EntryRow) => void }): React.ReactElement {
  const { entry, choose } = props;
  if (entry.state === "IN_PROGRESS") return <span className="seg-do" />;
  if (entry.is_cleaning) return <span className="seg-do seg-muted">too old to undo</span>;
  const name = entry.state === "REVERTED" ? "Bring back" : "Roll back";
  return (
    <span className="seg-do">
      <button aria-label={`${name} entry ${short(entry.entry_id)}`} onClick={() => choose(entry)}>
        {name}…
      </button>
    </span>
  );
}
