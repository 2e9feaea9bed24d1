// The segments page. Airflow loads this script and renders what `globalThis.AirflowPlugin` is: on a page of its own, or as
// a tab of a DAG run or a task, which it then names.
import React from "react";
import { getConnections, getDag, type Connections } from "./api";
import { OperationsPage } from "./operations";
import { Banners, Shown, useLoaded } from "./parts";
import { link, read } from "./place";
import { RegionsPage, SilentRegions } from "./regions";
import { RunTab } from "./runs";
import { STYLE } from "./style";
import { TablePage } from "./table";
import { TableList } from "./tables";

type Given = { dagId?: string; runId?: string; taskId?: string };

function SegmentsPage(props: Given): React.ReactElement {
  const loaded = useLoaded(getConnections, []);
  return (
    <div className="seg">
      <style>{STYLE}</style>
      <Shown loaded={loaded}>
        {(known) =>
          props.dagId && props.runId ? (
            <RunTab known={known} dag={props.dagId} run={props.runId} task={props.taskId ?? null} />
          ) : (
            <Browse known={known} />
          )
        }
      </Shown>
    </div>
  );
}

function Browse(props: { known: Connections }): React.ReactElement {
  const { known } = props;
  const [place, setPlace] = React.useState(read());
  React.useEffect(() => {
    const moved = () => setPlace(read());
    window.addEventListener("hashchange", moved);
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  const conn = place.conn ?? known.connections[0];
  const unreadable = known.unreadable.map(
    (name) => `Connection ${name} (AIRFLOW_CONN_${name.toUpperCase()}) cannot be read. If it is one of type segments, its tables are missing here.`,
  );
  if (conn === undefined)
    return (
      <React.Fragment>
        <h1>Segments</h1>
        <Banners texts={unreadable} />
        <p>
          There is no connection of type <code>segments</code> yet. Add one under Admin, Connections.
        </p>
      </React.Fragment>
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
            {[...new Set([...known.connections, conn])].map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <a href={link({ conn })} {...current(!place.table && !place.view)}>
          Tables
        </a>
        <a href={link({ conn, view: "operations" })} {...current(place.view === "operations")}>
          Operations
        </a>
        <a href={link({ conn, view: "regions" })} {...current(place.view === "regions")}>
          Regions
        </a>
      </nav>
      {place.view !== "regions" && !place.table && <SilentRegions conn={conn} />}
      <Banners texts={unreadable} />
      <Paused known={known} />
      {place.table ? (
        <TablePage key={`${conn}/${place.table}`} conn={conn} table={place.table} known={known} />
      ) : place.view === "operations" ? (
        <OperationsPage conn={conn} known={known} />
      ) : place.view === "regions" ? (
        <RegionsPage conn={conn} />
      ) : (
        <TableList conn={conn} />
      )}
    </React.Fragment>
  );
}

const current = (is: boolean): { "aria-current"?: "page" } => (is ? { "aria-current": "page" } : {});

/** Says when nothing is cleaned up or deleted because a DAG is paused. Who may not see the DAG is told nothing. */
function Paused(props: { known: Connections }): React.ReactElement {
  const { retention_dag_id, deletion_dag_id } = props.known;
  const retention = useLoaded(() => getDag(retention_dag_id), [retention_dag_id]);
  const deletion = useLoaded(() => getDag(deletion_dag_id), [deletion_dag_id]);
  const texts: string[] = [];
  if (retention.value?.is_paused) texts.push(`DAG ${retention_dag_id} is paused: nothing old is let go, and storage grows.`);
  if (deletion.value?.is_paused) texts.push(`DAG ${deletion_dag_id} is paused: what waits for deletion stays.`);
  return <Banners texts={texts} />;
}

(globalThis as { AirflowPlugin?: unknown }).AirflowPlugin = SegmentsPage;
