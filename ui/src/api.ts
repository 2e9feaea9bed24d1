// The page's own routes, which only read, and the few of Airflow's that start a DAG run as the user who clicks.

export type Author = { identity: string; dag_id: string | null; run_id: string | null };
export type Running = { entry_id: string; since_ms: number; by: Author | null };
export type TableRow = {
  name: string;
  kind: string;
  error: string | null;
  dropped_by: string | null;
  entry_id: string | null;
  since_ms: number | null;
  by: Author | null;
  rows: number | null;
  bytes: number | null;
  segments: number | null;
  rollback_until_ms: number | null;
  running: Running[];
};
export type Tables = { total: number; tables: TableRow[] };
export type EntryRow = {
  entry_id: string;
  state: string;
  since_ms: number;
  by: Author | null;
  segments_from: number;
  segments_to: number;
  rows: number;
  bytes: number;
  overwrites: number;
  is_latest: boolean;
  is_cleaning: boolean;
};
export type TableDetail = {
  table: TableRow;
  config: Record<string, unknown>;
  entries_total: number;
  entries: EntryRow[];
};
export type SegmentRow = {
  name: string;
  state: string;
  start_ms: number;
  end_ms: number;
  version: number;
  partition: number;
  rows: number;
  bytes: number;
  entry_id: string;
};
export type Segments = { total: number; segments: SegmentRow[] };
export type Preview = {
  entry_id: string;
  brings_back: boolean;
  refused: string | null;
  rule: string | null;
  rows_before: number;
  rows_after: number;
  bytes_before: number;
  bytes_after: number;
  reappearing: number;
  hidden: number;
};
export type Operations = {
  pending: number;
  waiting: number;
  next_due_ms: number | null;
  sweeps: number;
  dead: number;
  dead_letters: { dead_id: string; table: string; messages: number; dead_ms: number; error: string }[];
  locks: {
    table: string;
    lock_id: string;
    lock_type: string;
    start_ms: number;
    end_ms: number;
    group: string;
    priority: number;
    lease_until_ms: number;
    revoked_by: string | null;
  }[];
  leases: { table: string; owner: string; taken_ms: number }[];
};
export type Connections = { connections: string[]; rollback_dag_id: string; unrevert_dag_id: string };
export type Dag = { dag_id: string; is_paused: boolean };
export type DagRun = { dag_run_id: string; state: string };

/** An address below Airflow's base URL, whatever prefix it is served under. */
export const address = (path: string): string => new URL(path, document.baseURI).href;

const PATIENCE_MS = 20_000;

async function request<T>(method: string, path: string, body?: unknown): Promise<T> {
  const answer = await fetch(address(path), {
    method,
    credentials: "same-origin",
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? null : JSON.stringify(body),
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  const text = await answer.text();
  if (!answer.ok) throw new Error(explain(answer.status, text));
  return JSON.parse(text) as T;
}

function explain(status: number, text: string): string {
  if (status === 401) return "You are not logged in any more.";
  let detail: unknown;
  try {
    detail = (JSON.parse(text) as { detail?: unknown }).detail;
  } catch {
    detail = text.slice(0, 300);
  }
  const said = typeof detail === "string" ? detail : JSON.stringify(detail ?? "");
  return status === 403 ? `You may not do this. ${said}` : said || `The server answered ${status}.`;
}

const part = encodeURIComponent;
const ours = (conn: string): string => `segments/api/connections/${part(conn)}`;
const of = (conn: string, table: string): string => `${ours(conn)}/tables/${part(table)}`;

export const getConnections = (): Promise<Connections> => request("GET", "segments/api/connections");
export const getTables = (conn: string, search: string, offset: number, limit: number): Promise<Tables> =>
  request("GET", `${ours(conn)}/tables?search=${part(search)}&offset=${offset}&limit=${limit}`);
export const getTable = (conn: string, table: string, offset: number, limit: number): Promise<TableDetail> =>
  request("GET", `${of(conn, table)}?offset=${offset}&limit=${limit}`);
export const getSegments = (conn: string, table: string, start: number | null, end: number | null): Promise<Segments> => {
  const asked = new URLSearchParams({ limit: "1000" });
  if (start !== null) asked.set("start_ms", String(start));
  if (end !== null) asked.set("end_ms", String(end));
  return request("GET", `${of(conn, table)}/segments?${asked}`);
};
export const getPreview = (conn: string, table: string, entry: string): Promise<Preview> =>
  request("GET", `${of(conn, table)}/entries/${part(entry)}/preview`);
export const getOperations = (conn: string): Promise<Operations> => request("GET", `${ours(conn)}/operations`);

export const getDag = (dag: string): Promise<Dag> => request("GET", `api/v2/dags/${part(dag)}`);
export const startRun = (dag: string, conf: Record<string, unknown>): Promise<DagRun> =>
  request("POST", `api/v2/dags/${part(dag)}/dagRuns`, { logical_date: null, conf, note: "Started on the segments page" });
export const getRun = (dag: string, run: string): Promise<DagRun> =>
  request("GET", `api/v2/dags/${part(dag)}/dagRuns/${part(run)}`);
