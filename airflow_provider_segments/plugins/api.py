"""The page's routes: all of them read, and all of them ask for the right to see plugins.

What changes something is a DAG run, which the page starts through Airflow's own API as the user who clicks. So rights,
notes and the audit trail stay Airflow's. Annotations are evaluated here, so nothing is imported for types only.
"""

import mimetypes
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from airflow.configuration import conf
from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    EntryNotFoundError,
    InvalidConfigError,
    InvalidNameError,
    MetadataUnavailableError,
    SegmentsError,
    StorageError,
    TableNotFoundError,
)
from airflow_provider_segments.plugins import operations as operating
from airflow_provider_segments.plugins import overview, past, regions
from airflow_provider_segments.plugins.answers import Answers, StillWorkingError
from airflow_provider_segments.plugins.connections import list_connections
from airflow_provider_segments.plugins.models import (
    Connections,
    Diff,
    EntryDetail,
    Events,
    History,
    Operations,
    Preview,
    Regions,
    Segments,
    TableDetail,
    TableRegions,
    Tables,
    Timeline,
)
from airflow_provider_segments.plugins.overview import Opened
from airflow_provider_segments.plugins.past import Stretch
from airflow_provider_segments.plugins.stores import Stores
from airflow_provider_segments.text import for_message, mask

_STATIC = Path(__file__).parent / "static"
_STATUS: tuple[tuple[type[SegmentsError], int], ...] = (
    (MetadataUnavailableError, 503),
    (StorageError, 503),
    (TableNotFoundError, 404),
    (EntryNotFoundError, 404),
    (InvalidConfigError, 404),
    (InvalidNameError, 422),
    (CorruptRecordError, 500),
)
_DAG_IDS = {
    "rollback_dag_id": "segments_rollback",
    "unrevert_dag_id": "segments_unrevert",
    "retention_dag_id": "segments_retention",
    "deletion_dag_id": "segments_ledger_deletion",
    "dead_letters_dag_id": "segments_dead_letters",
    "revoke_dag_id": "segments_revoke_lock",
}
_STORES = Stores()
_ANSWERS = Answers()
_T = TypeVar("_T")

app = FastAPI(
    title="Segments",
    description="What the segments page reads. No route changes anything.",
    dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
)

Offset = Annotated[int, Query(ge=0, description="How many to leave out at the beginning")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most that are wanted")]


@app.exception_handler(SegmentsError)
def answer_error(_: Request, error: SegmentsError) -> JSONResponse:
    """Say what is wrong, in the words of the package."""
    status = next((number for kind, number in _STATUS if isinstance(error, kind)), 409)
    return JSONResponse({"detail": mask(str(error))}, status_code=status)


@app.exception_handler(ValueError)
def answer_bad_value(_: Request, error: ValueError) -> JSONResponse:
    """Say what of the request cannot be, as an interval that ends before it begins."""
    return JSONResponse({"detail": for_message(str(error))}, status_code=422)


@app.exception_handler(StillWorkingError)
def answer_later(_: Request, error: StillWorkingError) -> JSONResponse:
    """Have the page ask again."""
    return JSONResponse({"detail": str(error)}, status_code=202, headers={"Retry-After": "1"})


class Ask:
    """Answers one request from the store of its connection, once for all who ask for the same meanwhile."""

    def __init__(self, conn_id: str, request: Request) -> None:
        self.conn_id = conn_id
        self.key = (request.url.path, request.url.query)

    def __call__(self, work: Callable[[Opened], _T]) -> _T:
        """What ``work`` makes of the store. Raises :class:`StillWorkingError` and what ``work`` raises."""
        return _ANSWERS.get(self.key, lambda: self._in_store(work))

    def _in_store(self, work: Callable[[Opened], _T]) -> _T:
        with _STORES.use(self.conn_id) as store:
            return work(store)


def ask(conn_id: str, request: Request) -> Ask:
    """What answers a request about the connection in the route."""
    return Ask(conn_id, request)


Asking = Annotated[Ask, Depends(ask)]


def stretch(start_ms: int | None = None, end_ms: int | None = None, as_of: str | None = None) -> Stretch:
    """A stretch of time, now or right after the entry ``as_of``."""
    return Stretch(start_ms, end_ms, as_of)


Wanted = Annotated[Stretch, Depends(stretch)]


@app.get("/api/connections")
def connections() -> Connections:
    """The connections of type ``segments``."""
    listed = list_connections()
    return Connections(
        connections=listed.conn_ids,
        unreadable=listed.unreadable,
        **{name: str(conf.get("segments", name, fallback=dag_id)) for name, dag_id in _DAG_IDS.items()},
    )


@app.get("/api/connections/{conn_id}/tables")
def tables(
    ask: Asking,
    search: str = "",
    sort: Annotated[Literal["name", "rows", "bytes", "since_ms"], Query(description="The largest come first")] = "name",
    offset: Offset = 0,
    limit: Limit = 50,
) -> Tables:
    """A part of the tables, each with what readers see."""
    return ask(lambda given: overview.list_tables(given, search=search, sort=sort, offset=offset, limit=limit))


@app.get("/api/connections/{conn_id}/tables/{table}")
def table(ask: Asking, table: str, offset: Offset = 0, limit: Limit = 50) -> TableDetail:
    """One table, with a part of its lineage."""
    return ask(lambda given: overview.describe_lineage(given, table, offset=offset, limit=limit))


@app.get("/api/connections/{conn_id}/tables/{table}/history")
def history(ask: Asking, table: str, offset: Offset = 0, limit: Annotated[int, Query(ge=1, le=50)] = 50) -> History:
    """What readers saw right after each of a part of the entries."""
    return ask(lambda given: past.describe_history(given, table, offset=offset, limit=limit))


@app.get("/api/connections/{conn_id}/tables/{table}/diff")
def diff(ask: Asking, table: str, before: str, after: str = past.NOW) -> Diff:
    """What came and went between two entries, or an entry and now."""
    return ask(lambda given: past.describe_diff(given, table, before, after))


@app.get("/api/connections/{conn_id}/tables/{table}/segments")
def segments(ask: Asking, table: str, wanted: Wanted, offset: Offset = 0, limit: Limit = 50) -> Segments:
    """A part of the segments of a stretch of time."""
    return ask(lambda given: past.list_segments(given, table, wanted, offset=offset, limit=limit))


@app.get("/api/connections/{conn_id}/tables/{table}/timeline")
def timeline(ask: Asking, table: str, wanted: Wanted) -> Timeline:
    """The segments of a stretch of time, by time and state."""
    return ask(lambda given: past.describe_timeline(given, table, wanted))


@app.get("/api/connections/{conn_id}/tables/{table}/events")
def table_events(ask: Asking, table: str, limit: Limit = 100) -> Events:
    """The newest events of a table's audit trail."""
    return ask(lambda given: operating.list_events(given, table, limit))


@app.get("/api/connections/{conn_id}/tables/{table}/regions")
def table_regions(ask: Asking, table: str) -> TableRegions:
    """How long ago each region of an upsert table was heard, and its last comparisons."""
    return ask(lambda given: regions.describe_table_regions(given, table))


@app.get("/api/connections/{conn_id}/tables/{table}/entries/{entry_id}")
def entry(ask: Asking, table: str, entry_id: str) -> EntryDetail:
    """One lineage entry, and what has become of it."""
    return ask(lambda given: overview.describe_entry(given, table, entry_id))


@app.get("/api/connections/{conn_id}/tables/{table}/entries/{entry_id}/preview")
def preview(ask: Asking, table: str, entry_id: str) -> Preview:
    """What rolling the entry back, or bringing it back, would do."""
    return ask(lambda given: overview.preview_change(given, table, entry_id))


@app.get("/api/connections/{conn_id}/operations")
def operations(ask: Asking) -> Operations:
    """Deletions, locks and leases."""
    return ask(lambda given: operating.describe_operations(given))


@app.get("/api/connections/{conn_id}/regions")
def all_regions(ask: Asking) -> Regions:
    """The regions of all upsert tables that have some."""
    return ask(lambda given: regions.list_regions(given))


@app.get("/api/connections/{conn_id}/events")
def events(ask: Asking, limit: Limit = 100) -> Events:
    """The newest events of the audit trails of all tables."""
    return ask(lambda given: operating.list_events(given, None, limit))


@app.get("/static/{name}")
def static(name: str) -> Response:
    """The page's own script."""
    files = {path.name: path for path in _STATIC.iterdir()}
    if name not in files:
        return JSONResponse({"detail": "there is no such file"}, status_code=404)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(files[name].read_bytes(), media_type=kind, headers={"Cache-Control": "private, max-age=3600"})
