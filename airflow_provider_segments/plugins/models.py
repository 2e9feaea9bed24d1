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


class TableRow(BaseModel):
    """One table of the list. ``error`` says why the rest is not known."""

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
    running: list[Running] = []


class Tables(BaseModel):
    """One part of the list of tables; ``total`` counts all that match."""

    total: int
    tables: list[TableRow]


class EntryRow(BaseModel):
    """One lineage entry: what it brought, and what may be done with it."""

    entry_id: str
    state: str
    since_ms: int
    by: Author | None
    segments_from: int
    segments_to: int
    rows: int
    bytes: int
    overwrites: int
    is_latest: bool
    is_cleaning: bool


class TableDetail(BaseModel):
    """One table, with one part of its lineage, newest first; ``entries_total`` counts all of it."""

    table: TableRow
    config: dict[str, object]
    entries_total: int
    entries: list[EntryRow]


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
    """A lock that somebody holds."""

    table: str
    lock_id: str
    lock_type: str
    start_ms: int
    end_ms: int
    group: str
    priority: int
    lease_until_ms: int
    revoked_by: str | None


class LeaseRow(BaseModel):
    """A reader that deletions wait for."""

    table: str
    owner: str
    taken_ms: int


class Operations(BaseModel):
    """What goes on in a cluster besides pushes."""

    pending: int
    waiting: int
    next_due_ms: int | None
    sweeps: int
    dead: int
    dead_letters: list[DeadLetter]
    locks: list[LockRow]
    leases: list[LeaseRow]


class Connections(BaseModel):
    """The connections of type ``segments``, and the DAGs that roll back and bring back."""

    connections: list[str]
    rollback_dag_id: str
    unrevert_dag_id: str
