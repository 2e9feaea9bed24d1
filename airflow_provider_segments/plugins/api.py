"""The page's routes: all of them read, and all of them ask for the right to see plugins.

What changes something is a DAG run, which the page starts through Airflow's own API as the user who clicks. So rights,
notes and the audit trail stay Airflow's. Annotations are evaluated here, so nothing is imported for types only.
"""

import mimetypes
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from airflow.configuration import conf
from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from airflow_provider_segments.core.table import SegmentStore
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
from airflow_provider_segments.hooks.settings import SegmentsConnection
from airflow_provider_segments.plugins import overview
from airflow_provider_segments.plugins.models import (
    Connections,
    Operations,
    Preview,
    Segments,
    TableDetail,
    Tables,
)
from airflow_provider_segments.plugins.stores import Stores, connection_ids

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
_STORES = Stores()

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
    return JSONResponse({"detail": str(error)}, status_code=status)


def opened(conn_id: str) -> Iterator[tuple[SegmentsConnection, SegmentStore]]:
    """The store of the connection in the route."""
    with _STORES.use(conn_id) as (settings, store):
        yield settings, store


Opened = Annotated[tuple[SegmentsConnection, SegmentStore], Depends(opened)]


@app.get("/api/connections")
def connections() -> Connections:
    """The connections of type ``segments``."""
    return Connections(
        connections=connection_ids(),
        rollback_dag_id=conf.get("segments", "rollback_dag_id", fallback="segments_rollback"),
        unrevert_dag_id=conf.get("segments", "unrevert_dag_id", fallback="segments_unrevert"),
    )


@app.get("/api/connections/{conn_id}/tables")
def tables(given: Opened, search: str = "", offset: Offset = 0, limit: Limit = 50) -> Tables:
    """A part of the tables, each with what readers see."""
    return overview.list_tables(*given, search=search, offset=offset, limit=limit)


@app.get("/api/connections/{conn_id}/tables/{table}")
def table(given: Opened, table: str, offset: Offset = 0, limit: Limit = 50) -> TableDetail:
    """One table, with a part of its lineage."""
    return overview.describe_lineage(*given, table, offset=offset, limit=limit)


@app.get("/api/connections/{conn_id}/tables/{table}/segments")
def segments(
    given: Opened,
    table: str,
    start_ms: int | None = None,
    end_ms: int | None = None,
    offset: Offset = 0,
    limit: Limit = 500,
) -> Segments:
    """A part of the segments of a stretch of time."""
    return overview.list_segments(given[1], table, start_ms=start_ms, end_ms=end_ms, offset=offset, limit=limit)


@app.get("/api/connections/{conn_id}/tables/{table}/entries/{entry_id}/preview")
def preview(given: Opened, table: str, entry_id: str) -> Preview:
    """What rolling the entry back, or bringing it back, would do."""
    return overview.preview_change(given[1], table, entry_id)


@app.get("/api/connections/{conn_id}/operations")
def operations(given: Opened) -> Operations:
    """Deletions, locks and leases."""
    return overview.describe_operations(given[1])


@app.get("/static/{name}")
def static(name: str) -> Response:
    """The page's own script."""
    files = {path.name: path for path in _STATIC.iterdir()}
    if name not in files:
        return JSONResponse({"detail": "there is no such file"}, status_code=404)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(files[name].read_bytes(), media_type=kind, headers={"Cache-Control": "private, max-age=3600"})
