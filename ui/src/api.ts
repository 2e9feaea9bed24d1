// The page's own routes, which only read, and the few of Airflow's that start a DAG run as the user who clicks.

export type Author = { identity: string; dag_id: string | null; run_id: string | null };
export type Running = { entry_id: string; since_ms: number; by: Author | null };
export type Totals = { segments: number; rows: number; bytes: number };
export type CopyReader = {
  reader: string;
  version: number;
  behind: number;
  is_caught_up: boolean;
  is_silent: boolean;
  at_ms: number;
};
export type Version = { version: number; at_ms: number; entry_id: string; is_rollback: boolean; is_void: boolean };
export type UpsertState = {
  mark: number;
  mark_ms: number | null;
  floor: number;
  cutoff: number | null;
  key_partitions: number;
  low_water_mark: number;
  waiting: number;
  readers: CopyReader[];
  versions: Version[];
  positions: Record<string, number>;
};
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
  bytes_waiting: number;
  running: Running[];
  failed: Failed | null;
  upsert: UpsertState | null;
};
export type Failed = { entry_id: string; since_ms: number; by: Author | null; settled_by: Author | null };
export type Tables = { total: number; tables: TableRow[]; problems: string[]; dead: number };
export type EntryRow = {
  entry_id: string;
  state: string;
  since_ms: number;
  by: Author | null;
  settled_by: Author | null;
  segments_from: number;
  segments_to: number;
  brought: Totals;
  replaced: Totals | null;
  overwrites: number;
  is_latest: boolean;
  is_cleaning: boolean;
  until_ms: number | null;
};
export type Storage = { visible: Totals; replaced: Totals; rolled_back: Totals; waiting_bytes: number };
export type TableDetail = {
  table: TableRow;
  config: Record<string, unknown>;
  entries_total: number;
  entries: EntryRow[];
  storage: Storage;
};
export type EntryDetail = {
  table: string;
  entry: EntryRow;
  after: Totals | null;
  segments_from: string[];
  segments_to: string[];
  replaced_by: string[];
  visible_segments: number;
};
export type History = { after: Record<string, Totals | null>; stored: Record<string, number> };
export type Came = { totals: Totals; names: string[] };
export type Diff = { before: Totals; after: Totals; came: Came; went: Came };
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
export type Block = { start_ms: number; end_ms: number; state: string; totals: Totals };
export type Timeline = { blocks: Block[]; is_merged: boolean };
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
export type EventRow = {
  table: string;
  action: string;
  actor: string;
  at_ms: number;
  entry_id: string;
  by: Author | null;
  detail: string;
};
export type Events = { events: EventRow[]; hint: string | null };
export type DeadLetter = { dead_id: string; table: string; messages: number; dead_ms: number; error: string };
export type LockRow = {
  table: string;
  lock_id: string;
  lock_type: string;
  start_ms: number;
  end_ms: number;
  group: string;
  by: Author | null;
  priority: number;
  lease_until_ms: number;
  revoked_by: string | null;
};
export type Operations = {
  problems: string[];
  waiting_tables: { table: string; objects: number; bytes: number; oldest_ms: number; reasons: string[] }[];
  is_whole: boolean;
  pending: number;
  waiting: number;
  next_due_ms: number | null;
  sweeps: number;
  dead: number;
  dead_letters: DeadLetter[];
  locks: LockRow[];
  leases: { table: string; owner: string; taken_ms: number }[];
  offloads: { table: string; copies_to: string; segments: number; since_ms: number; is_claimed: boolean }[];
  doctor: Doctor | null;
};
export type Doctor = {
  at_ms: number;
  actor: string;
  tables: number;
  znodes: number;
  objects: number;
  counts: Record<string, number>;
  findings: { severity: string; check: string; subject: string; detail: string }[];
};
export type PartitionRow = { partition: number; position: number; lag_ms: number | null; behind: number };
export type RegionRow = {
  region: string;
  state: string;
  lag_ms: number | null;
  heard_ms: number | null;
  partitions: PartitionRow[];
};
export type ComparisonRow = {
  other: string;
  at_ms: number;
  version: number;
  other_version: number;
  counts: Record<string, number>;
  has_diverged: boolean;
  other_behind: Record<string, number>;
  findings: string;
  entry_id: string;
};
export type TableRegions = {
  table: string;
  error: string | null;
  interval_ms: number | null;
  regions: RegionRow[];
  comparisons: ComparisonRow[];
};
export type Connections = {
  connections: string[];
  unreadable: string[];
  rollback_dag_id: string;
  unrevert_dag_id: string;
  retention_dag_id: string;
  deletion_dag_id: string;
  dead_letters_dag_id: string;
  revoke_dag_id: string;
};
export type Dag = { dag_id: string; is_paused: boolean };
export type DagRun = { dag_run_id: string; state: string; note: string | null };

/** An address below Airflow's base URL, whatever prefix it is served under. */
export const address = (path: string): string => new URL(path, document.baseURI).href;

const PATIENCE_MS = 20_000;
const ASK_AGAIN = 202;

/** The answer is still being computed: to be asked for again. */
export class Waiting extends Error {}

async function request<T>(method: string, path: string, body?: unknown): Promise<T> {
  const answer = await fetch(address(path), {
    method,
    credentials: "same-origin",
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? null : JSON.stringify(body),
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  const text = await answer.text();
  if (answer.status === ASK_AGAIN) throw new Waiting(explain(answer.status, text));
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
export const getTables = (conn: string, search: string, sort: string, offset: number, limit: number): Promise<Tables> =>
  request("GET", `${ours(conn)}/tables?${new URLSearchParams({ search, sort, offset: `${offset}`, limit: `${limit}` })}`);
export const getTable = (conn: string, table: string, offset: number, limit: number): Promise<TableDetail> =>
  request("GET", `${of(conn, table)}?offset=${offset}&limit=${limit}`);
export const getHistory = (conn: string, table: string, offset: number, limit: number): Promise<History> =>
  request("GET", `${of(conn, table)}/history?offset=${offset}&limit=${limit}`);
export const getDiff = (conn: string, table: string, before: string, after: string): Promise<Diff> =>
  request("GET", `${of(conn, table)}/diff?${new URLSearchParams({ before, after })}`);

/** A stretch of time, in the past when `as_of` names an entry. */
export type Stretch = { start: number | null; end: number | null; asOf: string | null };

function asked(stretch: Stretch): URLSearchParams {
  const query = new URLSearchParams();
  if (stretch.start !== null) query.set("start_ms", String(stretch.start));
  if (stretch.end !== null) query.set("end_ms", String(stretch.end));
  if (stretch.asOf !== null) query.set("as_of", stretch.asOf);
  return query;
}
export const getSegments = (conn: string, table: string, stretch: Stretch, offset: number, limit: number): Promise<Segments> =>
  request("GET", `${of(conn, table)}/segments?offset=${offset}&limit=${limit}&${asked(stretch)}`);
export const getTimeline = (conn: string, table: string, stretch: Stretch): Promise<Timeline> =>
  request("GET", `${of(conn, table)}/timeline?${asked(stretch)}`);
export const getEntry = (conn: string, table: string, entry: string): Promise<EntryDetail> =>
  request("GET", `${of(conn, table)}/entries/${part(entry)}`);
export const getPreview = (conn: string, table: string, entry: string): Promise<Preview> =>
  request("GET", `${of(conn, table)}/entries/${part(entry)}/preview`);
export const getOperations = (conn: string): Promise<Operations> => request("GET", `${ours(conn)}/operations`);
export const getRegions = (conn: string): Promise<{ tables: TableRegions[] }> => request("GET", `${ours(conn)}/regions`);
export const getTableRegions = (conn: string, table: string): Promise<TableRegions> => request("GET", `${of(conn, table)}/regions`);
export const getEvents = (conn: string, table: string | null): Promise<Events> =>
  request("GET", table === null ? `${ours(conn)}/events` : `${of(conn, table)}/events`);

export const getDag = (dag: string): Promise<Dag> => request("GET", `api/v2/dags/${part(dag)}`);
export const startRun = (dag: string, conf: Record<string, unknown>): Promise<DagRun> =>
  request("POST", `api/v2/dags/${part(dag)}/dagRuns`, { logical_date: null, conf, note: "Started on the segments page" });
export const getRun = (dag: string, run: string): Promise<DagRun> =>
  request("GET", `api/v2/dags/${part(dag)}/dagRuns/${part(run)}`);

type Xcom = { task_id: string; map_index: number };
const xcoms = (dag: string, run: string, task: string): string =>
  `api/v2/dags/${part(dag)}/dagRuns/${part(run)}/taskInstances/${part(task)}/xcomEntries`;

/** What the tasks of a run, or one of them, have said under a key, as far as it names a lineage entry. */
async function getNamed<T extends Named>(dag: string, run: string, task: string | null, key: string): Promise<T[]> {
  const listed = await request<{ xcom_entries: Xcom[] }>("GET", `${xcoms(dag, run, task ?? "~")}?xcom_key=${key}&limit=100`);
  const values = await Promise.all(
    listed.xcom_entries.map((one) =>
      request<{ value: unknown }>("GET", `${xcoms(dag, run, one.task_id)}/${key}?map_index=${one.map_index}&stringify=false`),
    ),
  );
  return values.map((one) => one.value as Partial<T>).filter(isNamed) as T[];
}

/** The entries that the tasks of a run, or one of them, work on, each with the checks of what it has staged. */
export async function getEntriesOfRun(dag: string, run: string, task: string | null): Promise<EntryOfRun[]> {
  const [named, validations] = await Promise.all([
    getNamed<Named>(dag, run, task, "entry"),
    getNamed<Validation>(dag, run, task, "validation"),
  ]);
  const found = new Map<string, EntryOfRun>();
  for (const one of [...named, ...validations]) {
    const key = `${one.segments_conn_id} ${one.table} ${one.entry_id}`;
    const entry = found.get(key) ?? { table: one.table, segments_conn_id: one.segments_conn_id, entry_id: one.entry_id, validations: [] };
    if ("findings" in one) entry.validations.push(one as Validation);
    found.set(key, entry);
  }
  return [...found.values()];
}

/** A lineage entry with where it is. */
export type Named = { table: string; segments_conn_id: string; entry_id: string };
export type Finding = { check: string; expected: string; found: string; ok: boolean };
export type Validation = Named & { rows: number; segments: number; findings: Finding[] };
export type EntryOfRun = Named & { validations: Validation[] };
const isNamed = (one: Partial<Named>): boolean =>
  typeof one?.table === "string" && typeof one.segments_conn_id === "string" && typeof one.entry_id === "string";

/** The DAG that works on a table: `{table}` in its id stands for the table's name. */
export const dagOf = (id: string, table: string): string => id.replaceAll("{table}", table);
