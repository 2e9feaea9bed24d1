// The segments page. Airflow loads this script and renders what `globalThis.AirflowPlugin` is.
import React from "react";
import { getConnections } from "./api";
import { OperationsPage } from "./operations";
import { Shown, useLoaded } from "./parts";
import { link, read } from "./place";
import { STYLE } from "./style";
import { TablePage } from "./table";
import { TableList } from "./tables";

function SegmentsPage(): React.ReactElement {
  const [place, setPlace] = React.useState(read());
  React.useEffect(() => {
    const moved = () => setPlace(read());
    window.addEventListener("hashchange", moved);
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  const loaded = useLoaded(getConnections, []);
  return (
    <main className="seg">
      <style>{STYLE}</style>
      <Shown loaded={loaded}>
        {(found) => {
          const conn = place.conn ?? found.connections[0];
          if (conn === undefined)
            return (
              <p>
                No connection of type <code>segments</code> is there. Add one under Admin, Connections.
              </p>
            );
          return (
            <React.Fragment>
              <nav aria-label="Segments">
                <h1>
                  {place.table ? <a href={link({ conn })}>Segments</a> : "Segments"}
                  {place.table && ` / ${place.table}`}
                </h1>
                <label>
                  Connection{" "}
                  <select value={conn} onChange={(event) => (window.location.hash = new URLSearchParams({ conn: event.target.value }).toString())}>
                    {found.connections.map((name) => (
                      <option key={name}>{name}</option>
                    ))}
                  </select>
                </label>
                <a href={link({ conn })}>Tables</a>
                <a href={link({ conn, view: "operations" })}>Operations</a>
              </nav>
              {place.table ? (
                <TablePage
                  conn={conn}
                  table={place.table}
                  dags={{ revert: found.rollback_dag_id, unrevert: found.unrevert_dag_id }}
                />
              ) : place.view === "operations" ? (
                <OperationsPage conn={conn} />
              ) : (
                <TableList conn={conn} />
              )}
            </React.Fragment>
          );
        }}
      </Shown>
    </main>
  );
}

(globalThis as { AirflowPlugin?: unknown }).AirflowPlugin = SegmentsPage;
