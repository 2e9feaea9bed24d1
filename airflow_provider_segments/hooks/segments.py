"""The hook behind the connection type ``segments``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.log import amask_secret, mask_secret

from airflow_provider_segments.exceptions import SegmentsError
from airflow_provider_segments.hooks.settings import SegmentsConnection

if TYPE_CHECKING:
    from airflow_provider_segments.core.table import SegmentStore


class SegmentsHook(BaseHook):
    """Opens the segment store that a ``segments`` connection describes.

    Nothing is opened before :meth:`get_conn`; call it inside ``execute`` and close what it returns::

        with SegmentsHook("segments_default").get_conn() as store:
            print(store.table("flights").snapshot().rows)

    Every secret of the connection is given to Airflow's secrets masker before it is used.
    """

    conn_name_attr = "segments_conn_id"
    default_conn_name = "segments_default"
    conn_type = "segments"
    hook_name = "Segments"

    def __init__(self, segments_conn_id: str = default_conn_name, logger_name: str | None = None) -> None:
        super().__init__(logger_name=logger_name)
        self.segments_conn_id = segments_conn_id

    @cached_property
    def settings(self) -> SegmentsConnection:
        """The connection's settings. Raises :class:`~airflow_provider_segments.exceptions.InvalidConfigError`."""
        settings = SegmentsConnection.parse(self.get_connection(self.segments_conn_id))
        for secret in settings.secrets:
            mask_secret(secret)
        return settings

    async def asettings(self) -> SegmentsConnection:
        """The connection's settings, for the triggerer, where asking for a connection must not block."""
        settings = SegmentsConnection.parse(await self.aget_connection(self.segments_conn_id))
        for secret in settings.secrets:
            await amask_secret(secret)
        return settings

    def get_conn(self) -> SegmentStore:
        """The open store. The caller closes it, or uses it as a context manager."""
        return self.settings.connect(_actor())

    def job_environment(self) -> dict[str, str]:
        """Environment variables for a Spark job that opens the same store. Never put them on a command line."""
        return self.settings.environment()

    def test_connection(self) -> tuple[bool, str]:
        """Connect to ZooKeeper, list the tables, and ask the storage for one listing; say what came of it."""
        try:
            with self.get_conn() as store:
                tables = store.tables()
                found = next(iter(store.storage.list(f"{tables[0] if tables else 'segments-connection-test'}/")), None)
        except SegmentsError as error:
            return False, str(error)
        kept = "objects found" if found else "reachable, nothing under the first table yet"
        return True, (
            f"ZooKeeper {self.settings.zk_hosts} answers, cluster {self.settings.cluster!r} has {len(tables)} "
            f"table{'' if len(tables) == 1 else 's'}; storage {self.settings.storage_uri}: {kept}"
        )


def _actor() -> str | None:
    """Who has triggered the DAG run that this is a task of, for the audit trail; ``None`` outside of one, and where
    nobody but the schedule did."""
    from airflow.sdk import get_current_context

    from airflow_provider_segments.core.cluster import local_user

    try:
        run = get_current_context().get("dag_run")
    except RuntimeError:
        return None
    user = getattr(run, "triggering_user_name", None)
    return f"Airflow user {user}, {local_user()}" if user else None
