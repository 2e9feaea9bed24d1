import React from "react";
import { getTables, type TableRow } from "./api";
import { ago, count, left, plural, short, size } from "./format";
import { Banners, By, Grid, Pages, Push, Shown, Tag, useLoaded, useSettled, When } from "./parts";
import { link } from "./place";

const LIMIT = 50;
const REFRESH_MS = 15_000;
const TYPING_MS = 250;

type Column = "name" | "rows" | "bytes" | "since_ms";

/** All tables of a connection: what readers see, since when, and until when that can be undone. */
export function TableList(props: { conn: string }): React.ReactElement {
  const [typed, setTyped] = React.useState("");
  const search = useSettled(typed, TYPING_MS);
  const [offset, setOffset] = React.useState(0);
  const [column, setColumn] = React.useState<Column>("name");
  const loaded = useLoaded(
    () => getTables(props.conn, search, column, offset, LIMIT),
    [props.conn, search, column, offset],
    REFRESH_MS,
  );
  const head = (name: Column, text: string) => (
    <button
      aria-pressed={column === name}
      onClick={() => {
        setColumn(name);
        setOffset(0);
      }}
    >
      {text}
      {column === name ? (name === "name" ? " ▲" : " ▼") : ""}
    </button>
  );
  const heads = [head("name", "Table"), "Kind", "Readers see", head("since_ms", "Since"), "By", head("rows", "Rows")];
  return (
    <section aria-label="Tables">
      <div className="seg-bar">
        <label>
          Search{" "}
          <input
            type="search"
            value={typed}
            onChange={(event) => {
              setTyped(event.target.value);
              setOffset(0);
            }}
          />
        </label>
        {loaded.value && <span className="seg-muted">{plural(loaded.value.total, "table")}</span>}
      </div>
      <Shown loaded={loaded}>
        {(found) => (
          <React.Fragment>
            <Banners texts={found.problems} bad />
            {found.dead > 0 && (
              <Banners
                bad
                texts={[
                  <React.Fragment>
                    {plural(found.dead, "deletion was", "deletions were")} given up. See{" "}
                    <a href={link({ conn: props.conn, view: "operations" })}>Operations</a>.
                  </React.Fragment>,
                ]}
              />
            )}
            {found.total === 0 ? (
              <p>No table{search ? ` has “${search}” in its name` : " is there yet"}.</p>
            ) : (
              <Grid
                label="List of tables"
                head={[...heads, head("bytes", "Size"), "Segments", "Roll back", "To delete", "In progress"]}
                numbers={[5, 6, 7, 9]}
                rows={found.tables.map((row) => cells(props.conn, row))}
              />
            )}
          </React.Fragment>
        )}
      </Shown>
      {loaded.value && <Pages offset={offset} limit={LIMIT} total={loaded.value.total} go={setOffset} />}
    </section>
  );
}

function cells(conn: string, row: TableRow): React.ReactNode[] {
  const name = <a href={link({ conn, table: row.name })}>{row.name}</a>;
  if (row.error !== null)
    return [
      name,
      <Tag kind="seg-red">unreadable</Tag>,
      <div className="seg-error">{row.error}</div>,
      ...Array.from({ length: 8 }, () => ""),
    ];
  return [
    name,
    <React.Fragment>
      {row.kind}
      {row.upsert !== null && <Lag row={row} />}
    </React.Fragment>,
    <Visible row={row} />,
    <When ms={row.since_ms} />,
    <By author={row.by} />,
    count(row.rows),
    size(row.bytes),
    count(row.segments),
    <Until row={row} />,
    row.bytes_waiting === 0 ? <span className="seg-muted">–</span> : size(row.bytes_waiting),
    row.running.map((push) => (
      <div key={push.entry_id}>
        <Push push={push} /> <span className="seg-muted">{ago(push.since_ms)}</span>
      </div>
    )),
  ];
}

/** The mark of an upsert table, and how far its slowest reader with a copy is behind. */
function Lag(props: { row: TableRow }): React.ReactElement | null {
  const upsert = props.row.upsert;
  if (upsert === null) return null;
  const behind = upsert.mark - upsert.low_water_mark;
  const silent = upsert.readers.filter((one) => one.is_silent).length;
  return (
    <div className="seg-muted">
      version {count(upsert.mark)}
      {behind > 0 && `, ${count(behind)} behind`}
      {silent > 0 && <Tag kind="seg-red">{plural(silent, "silent reader")}</Tag>}
    </div>
  );
}

function Visible(props: { row: TableRow }): React.ReactElement {
  const { row } = props;
  if (row.dropped_by !== null) return <Tag kind="seg-red">dropped</Tag>;
  return (
    <React.Fragment>
      {row.entry_id === null ? <span className="seg-muted">nothing yet</span> : <code title={row.entry_id}>{short(row.entry_id)}</code>}
      {row.failed !== null && (
        <div className="seg-red" title={row.failed.entry_id}>
          a later push failed <When ms={row.failed.since_ms} />
        </div>
      )}
    </React.Fragment>
  );
}

function Until(props: { row: TableRow }): React.ReactElement {
  const { row } = props;
  if (row.rollback_until_ms === null) return <span className="seg-muted">{row.entry_id === null ? "–" : "no longer"}</span>;
  if (row.rollback_until_ms <= Date.now()) return <span>until the next retention pass</span>;
  return <span>for {left(row.rollback_until_ms)}</span>;
}
