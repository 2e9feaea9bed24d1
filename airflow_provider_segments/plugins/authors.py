"""Whose work an entry, a lock or an event is."""

from __future__ import annotations

from airflow_provider_segments.core.lineage.guard import OWN_IDENTITY
from airflow_provider_segments.core.model.names import is_entry_id
from airflow_provider_segments.hooks.settings import SegmentsConnection
from airflow_provider_segments.plugins.models import Author


def author_of(settings: SegmentsConnection, identity: str | None) -> Author | None:
    """The author that ``identity`` names: a task of a DAG run is ``deployment/dag/run/task``. ``None`` for work
    that was given no name."""
    if not identity or is_entry_id(identity):  # a push without a name has a random one
        return None
    if identity.startswith(OWN_IDENTITY):
        return Author(identity=identity.removeprefix(OWN_IDENTITY))
    deployment, _, work = identity.partition("/")
    parts = work.split("/")
    if deployment != settings.deployment or len(parts) < 2:
        return Author(identity=identity)
    return Author(identity=identity, dag_id=parts[0], run_id=parts[1])
