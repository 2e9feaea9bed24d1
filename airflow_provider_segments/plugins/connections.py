"""Which connections of type ``segments`` there are, and what they say. Nothing here shows a secret."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow.models.connection import Connection
from airflow.providers.common.compat.sdk import conf
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_segments.exceptions import InvalidConfigError, SegmentsError
from airflow_provider_segments.hooks.settings import SegmentsConnection

CONN_TYPE = "segments"
_ENVIRONMENT = "AIRFLOW_CONN_"


@dataclass(frozen=True, slots=True)
class Listed:
    """Ids of the connections of type ``segments``, and of those of which nobody can tell whether they are."""

    conn_ids: list[str]
    unreadable: list[str]


def list_connections() -> Listed:
    """The connections in Airflow's database, in the environment, and those that ``[segments] conn_ids`` names: Airflow
    cannot list what a secrets backend holds."""
    named = [name.strip() for name in conf.get("segments", "conn_ids", fallback="").split(",") if name.strip()]
    given = {name.removeprefix(_ENVIRONMENT).lower(): raw for name, raw in _variables()}
    types = {conn_id: _declared_type(raw) for conn_id, raw in given.items()}
    ours = [conn_id for conn_id, kind in types.items() if kind == CONN_TYPE]
    return Listed(
        conn_ids=sorted({*_stored(), *named, *ours}),
        unreadable=sorted(key for key, kind in types.items() if kind is None),
    )


def read_connection(conn_id: str) -> SegmentsConnection:
    """The settings of a connection. Raises :class:`InvalidConfigError` when there is none of that id and type, and when
    it cannot be read; what it holds is never a part of the message."""
    try:
        connection = Connection.get_connection_from_secrets(conn_id)
        kind = connection.conn_type
        if kind == CONN_TYPE:
            return SegmentsConnection.parse(connection)
    except AirflowNotFoundException:
        kind = None
    except SegmentsError:
        raise
    except Exception as error:  # a wrong Fernet key, a broken URI: their messages may hold what they failed on
        raise InvalidConfigError(
            f"connection {conn_id!r} cannot be read ({type(error).__name__}): look at it under Admin, Connections"
        ) from error
    if kind is None and conn_id in _stored():  # Airflow takes what it cannot decrypt for absent
        raise InvalidConfigError(
            f"connection {conn_id!r} cannot be read: it was probably encrypted with another Fernet key; enter its "
            "password and extra again under Admin, Connections"
        )
    raise InvalidConfigError(f"there is no connection {conn_id!r} of type {CONN_TYPE}")


def _stored() -> set[str]:
    """Ids of those in Airflow's database."""
    with create_session() as session:
        return set(session.scalars(select(Connection.conn_id).where(Connection.conn_type == CONN_TYPE)).all())


def _variables() -> Iterable[tuple[str, str]]:
    return ((name, raw) for name, raw in os.environ.items() if name.startswith(_ENVIRONMENT))


def _declared_type(raw: str) -> str | None:
    """The type that a connection in the environment says it has; ``None`` when it says none that can be read."""
    if not raw.lstrip().startswith("{"):
        return _scheme(raw)
    try:
        kind = json.loads(raw).get("conn_type")
    except ValueError:
        return None
    return kind if isinstance(kind, str) and kind else None


def _scheme(raw: str) -> str | None:
    try:
        return urlsplit(raw).scheme.replace("-", "_") or None
    except ValueError:
        return None
