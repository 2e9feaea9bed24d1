import React from "react";
import { getTables, type TableRow } from "./api";
import { ago, count, left, plural, short, size } from "./format";
import { By, Pages, Shown, Tag, useLoaded, When } from "./parts";
import { link } from "./place";

const LIMIT = 50;
const REFRESH_MS = 15_000;

type Column = "name" | "rows" | "bytes" | "since_ms";

/** All tables of a connection: what readers see, since when, and until when that can be undone. */
export function TableList(props: { conn: string }): React.ReactElement {
  const [search, setSearch] = React.useState("");
  const [offset, setOffset] = React.useState(0);
  const [column, setColumn] = React.useState<Column>("name");
  const loaded = useLoaded(() => getTables(props.conn, search, offset, LIMIT), [props.conn, search, offset], REFRESH_MS);
  const head = (name: Column, text: string, number = false) => (
    <th className={number ? "seg-number" : ""} aria-sort={column === name ? "ascending" : "none"}>
      <button onClick={() => setColumn(name)}>{text}</button>
    </th>
  );
  return (
    <section>
      <div className="seg-bar">
        <label>
          Search{" "}
          <input
            type="search"
            value={search}
            onChange={(event) => {
              setSearch(event.target.value);
              setOffset(0);
            }}
          />
        </label>
        {loaded.value && <span className="seg-muted">{plural(loaded.value.total, "table")}</span>}
      </div>
      <Shown loaded={loaded}>
        {(found) => (
          <div className="seg-wide">
            {found.total === 0 && <p>No table{search ? ` has “${search}” in its name` : " is there yet"}.</p>}
            <table>
              <thead>
                <tr>
                  {head("name", "Table")}
                  <th>Kind</th>
                  <th>Readers see</th>
                  {head("since_ms", "Since")}
                  <th>By</th>
                  {head("rows", "Rows", true)}
                  {head("bytes", "Size", true)}
                  <th className="seg-number">Segments</th>
                  <th>Roll back</th>
                  <th>In progress</th>
                </tr>
              </thead>
              <tbody>
                {[...found.tables].sort(by(column)).map((row) => (
                  <Line key={row.name} conn={props.conn} row={row} />
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Shown>
      {loaded.value && <Pages offset={offset} limit={LIMIT} total={loaded.value.total} go={setOffset} />}
    </section>
  );
}

const by =
  (column: Column) =>
  (one: TableRow, other: TableRow): number =>
    column === "name" ? one.name.localeCompare(other.name) : (other[column] ?? -1) - (one[column] ?? -1);

function Line(props: { conn: string; row: TableRow }): React.ReactElement {
  const { conn, row } = props;
  const name = <a href={link({ conn, table: row.name })}>{row.name}</a>;
  if (row.error !== null)
    return (
      <tr>
        <td>{name}</td>
        <td colSpan={9}>
          <Tag kind="seg-red">unreadable</Tag> {row.error}
        </td>
      </tr>
    );
  return (
    <tr>
      <td>{name}</td>
      <td>{row.kind}</td>
      <td>
        {row.dropped_by !== null ? (
          <Tag kind="seg-red">dropped</Tag>
        ) : row.entry_id !== null ? (
          <code title={row.entry_id}>{short(row.entry_id)}</code>
        ) : (
          <span className="seg-muted">nothing yet</span>
        )}
      </td>
      <td>
        <When ms={row.since_ms} />
      </td>
      <td>
        <By author={row.by} />
      </td>
      <td className="seg-number">{count(row.rows)}</td>
      <td className="seg-number">{size(row.bytes)}</td>
      <td className="seg-number">{count(row.segments)}</td>
      <td>
        {row.rollback_until_ms === null ? (
          <span className="seg-muted">{row.entry_id === null ? "–" : "no longer"}</span>
        ) : row.rollback_until_ms > Date.now() ? (
          `for ${left(row.rollback_until_ms)}`
        ) : (
          "until the next retention pass"
        )}
      </td>
      <td>
        {row.running.map((push) => (
          <div key={push.entry_id}>
            <By author={push.by} /> <span className="seg-muted">{ago(push.since_ms)}</span>
          </div>
        ))}
      </td>
    </tr>
  );
}
