"""What the page's routes answer with. Times are epoch milliseconds."""

from __future__ import annotations

from pydantic import BaseModel


class Author(BaseModel):
    """Who started a push: its identity, and the DAG run where it is one of this Airflow."""

    identity: str
    dag_id: str | None = None
    run_id: str | None = None


class Running(BaseModel):
    """A push in progress."""

    entry_id: str
    since_ms: int
    by: Author | None


class Failed(BaseModel):
    """A push that was rolled back, or given up, before readers saw it: who started it, and who gave it up."""

    entry_id: str
    since_ms: int
    by: Author | None
    settled_by: Author | None


class Totals(BaseModel):
    """Totals of some segments."""

    segments: int
    rows: int
    bytes: int


class CopyReader(BaseModel):
    """A reader that keeps a copy of an upsert table, and the version that it has reported."""

    reader: str
    version: int
    behind: int
    is_caught_up: bool
    is_silent: bool
    at_ms: int


class Version(BaseModel):
    """A version of an upsert table that can still be read."""

    version: int
    at_ms: int
    entry_id: str
    is_rollback: bool
    is_void: bool


class UpsertState(BaseModel):
    """How an upsert table stands. ``mark`` is the newest version, ``low_water_mark`` the newest that all copies have,
    ``cutoff`` the smallest comparison value that is still taken (absent: any), ``waiting`` counts ordinary pushes that
    no run of ingestion has resolved yet. The list of tables leaves out ``versions`` and ``positions``."""

    mark: int
    mark_ms: int | None
    floor: int
    cutoff: int | None
    key_partitions: int
    low_water_mark: int
    waiting: int
    readers: list[CopyReader] = []
    versions: list[Version] = []
    positions: dict[str, int] = {}


class TableRow(BaseModel):
    """One table of the list. ``error`` says why the rest is not known; ``failed`` is the last push that failed, if none
    has succeeded since."""

    name: str
    kind: str = ""
    error: str | None = None
    dropped_by: str | None = None
    entry_id: str | None = None
    since_ms: int | None = None
    by: Author | None = None
    rows: int | None = None
    bytes: int | None = None
    segments: int | None = None
    rollback_until_ms: int | None = None
    bytes_waiting: int = 0
    running: list[Running] = []
    failed: Failed | None = None
    upsert: UpsertState | None = None


class Tables(BaseModel):
    """One part of the list of tables; ``total`` counts all that match. ``problems`` are what else could not be read,
    ``dead`` counts the deletions of the cluster that were given up."""

    total: int
    tables: list[TableRow]
    problems: list[str] = []
    dead: int = 0


class EntryRow(BaseModel):
    """One lineage entry: what it brought and replaced, and until when it can be rolled back or brought back.

    ``replaced`` is absent when some of what it replaced was removed since; ``settled_by`` says who rolled it back.
    """

    entry_id: str
    state: str
    since_ms: int
    by: Author | None
    settled_by: Author | None
    segments_from: int
    segments_to: int
    brought: Totals
    replaced: Totals | None
    overwrites: int
    is_latest: bool
    is_cleaning: bool
    until_ms: int | None


class Storage(BaseModel):
    """What a table's objects take: visible ones, those kept for a rollback, those kept to bring back a push, and those
    that wait for deletion."""

    visible: Totals
    replaced: Totals
    rolled_back: Totals
    waiting_bytes: int


class TableDetail(BaseModel):
    """One table, with one part of its lineage, newest first; ``entries_total`` counts all of it."""

    table: TableRow
    config: dict[str, object]
    entries_total: int
    entries: list[EntryRow]
    storage: Storage


class EntryDetail(BaseModel):
    """One entry with the first names of what it replaced and brought, and what readers saw right after it (absent when
    that is no longer known). ``replaced_by`` are the entries that have replaced segments of it."""

    table: str
    entry: EntryRow
    after: Totals | None
    segments_from: list[str]
    segments_to: list[str]
    replaced_by: list[str]
    visible_segments: int


class History(BaseModel):
    """What readers saw right after each entry; ``None`` when that is no longer known. Entries that there was no time
    for are left out. ``stored`` are the bytes that were registered right after each COMPLETED entry, without those that
    were removed since."""

    after: dict[str, Totals | None]
    stored: dict[str, int]


class Change(BaseModel):
    """Segments that one point in time shows and the other does not, the first of them by name."""

    totals: Totals
    names: list[str]


class Diff(BaseModel):
    """What readers saw right after two entries, or see now, and what came and went in between."""

    before: Totals
    after: Totals
    came: Change
    went: Change


class Block(BaseModel):
    """The segments of one stretch of time that are in one state."""

    start_ms: int
    end_ms: int
    state: str
    totals: Totals


class Timeline(BaseModel):
    """A table's segments by time. ``is_merged`` says that neighbouring time chunks were put together."""

    blocks: list[Block]
    is_merged: bool


class SegmentRow(BaseModel):
    """One registered segment and its state."""

    name: str
    state: str
    start_ms: int
    end_ms: int
    version: int
    partition: int
    rows: int
    bytes: int
    entry_id: str


class Segments(BaseModel):
    """One part of a table's segments, in order of time."""

    total: int
    segments: list[SegmentRow]


class Preview(BaseModel):
    """What a rollback would do, or bringing back what was rolled back; or why it is refused."""

    entry_id: str
    brings_back: bool
    refused: str | None = None
    rule: str | None = None
    rows_before: int = 0
    rows_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    reappearing: int = 0
    hidden: int = 0


class DeadLetter(BaseModel):
    """A batch of deletions that were given up."""

    dead_id: str
    table: str
    messages: int
    dead_ms: int
    error: str


class LockRow(BaseModel):
    """A lock that somebody holds. ``by`` names the DAG run where ``group`` is one of this Airflow."""

    table: str
    lock_id: str
    lock_type: str
    start_ms: int
    end_ms: int
    group: str
    by: Author | None
    priority: int
    lease_until_ms: int
    revoked_by: str | None


class LeaseRow(BaseModel):
    """A reader that deletions wait for."""

    table: str
    owner: str
    taken_ms: int


class WaitingTable(BaseModel):
    """What of a table waits for deletion."""

    table: str
    objects: int
    bytes: int
    oldest_ms: int
    reasons: list[str]


class EventRow(BaseModel):
    """An event of the audit trail."""

    table: str
    action: str
    actor: str
    at_ms: int
    entry_id: str
    by: Author | None
    detail: str


class Events(BaseModel):
    """Events of the audit trail, newest first. ``hint`` says why some may be missing."""

    events: list[EventRow]
    hint: str | None = None


class FindingRow(BaseModel):
    """A finding of the doctor: ``severity`` is ``error``, ``warning`` or ``note``."""

    severity: str
    check: str
    subject: str
    detail: str


class Doctor(BaseModel):
    """The doctor's last report that was kept: how much it looked at, the number of its findings by severity, and the
    worst of them."""

    at_ms: int
    actor: str
    tables: int
    znodes: int
    objects: int
    counts: dict[str, int]
    findings: list[FindingRow]


class OffloadRow(BaseModel):
    """An offload that is under way, or whose run was killed: then nobody claims it."""

    table: str
    copies_to: str
    segments: int
    since_ms: int
    is_claimed: bool


class Operations(BaseModel):
    """What goes on in a cluster besides pushes. ``problems`` are records that could not be read; ``is_whole`` says that
    the sizes in ``waiting_tables`` are of all that waits; ``doctor`` is absent when no report was kept."""

    problems: list[str]
    waiting_tables: list[WaitingTable]
    is_whole: bool
    pending: int
    waiting: int
    next_due_ms: int | None
    sweeps: int
    dead: int
    dead_letters: list[DeadLetter]
    locks: list[LockRow]
    leases: list[LeaseRow]
    offloads: list[OffloadRow]
    doctor: Doctor | None


class PartitionRow(BaseModel):
    """A source partition of a region: the offset to read next, how long ago it brought a heartbeat (absent: never), and
    how many offsets this table had read less of it than another region at a comparison."""

    partition: int
    position: int
    lag_ms: int | None
    behind: int


class RegionRow(BaseModel):
    """A region of an upsert table. ``state`` is ``heard``, ``silent``, ``clock ahead``, ``never``, or ``no heartbeats``
    where none are expected."""

    region: str
    state: str
    lag_ms: int | None
    heard_ms: int | None
    partitions: list[PartitionRow]


class ComparisonRow(BaseModel):
    """The last comparison with a table of another region: the versions, what was found by kind, and where the keys
    are."""

    other: str
    at_ms: int
    version: int
    other_version: int
    counts: dict[str, int]
    has_diverged: bool
    other_behind: dict[str, int]
    findings: str
    entry_id: str


class TableRegions(BaseModel):
    """The regions of one upsert table. ``error`` says why the rest is not known."""

    table: str
    error: str | None = None
    interval_ms: int | None = None
    regions: list[RegionRow] = []
    comparisons: list[ComparisonRow] = []


class Regions(BaseModel):
    """The upsert tables that are fed from regions."""

    tables: list[TableRegions]


class Connections(BaseModel):
    """The connections of type ``segments``, those that nobody can read, and the DAGs that the page starts or watches.
    ``{table}`` in a DAG's id stands for the table's name."""

    connections: list[str]
    unreadable: list[str]
    rollback_dag_id: str
    unrevert_dag_id: str
    retention_dag_id: str
    deletion_dag_id: str
    dead_letters_dag_id: str
    revoke_dag_id: str
