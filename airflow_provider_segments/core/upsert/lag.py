"""How long ago each region of an upsert table was heard. Pure."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.replication.heartbeat import Lag, lags
from airflow_provider_segments.core.upsert.record import UpsertRecord
from airflow_provider_segments.exceptions import UpsertRefusedError


def partitions_heard(record: UpsertRecord, region: str) -> dict[int, int | None]:
    """The time of the last heartbeat (epoch milliseconds) that each source partition of ``region`` has brought, of the
    partitions of which anything was read; ``None`` where no heartbeat is known that one has brought."""
    taken = [] if record.stream is None else record.stream.taken(region)
    sources = (source.rpartition("/") for source in record.positions)
    parts = {int(part) for name, _, part in sources if name == region}
    parts |= {part for heartbeat in taken for part in heartbeat.missing}
    return {
        part: next((one.time_ms for one in reversed(taken) if part not in one.missing), None) for part in sorted(parts)
    }


def heartbeat_lags(
    config: TableConfig, record: UpsertRecord, now_ms: int, regions: Collection[str] = ()
) -> dict[str, Lag]:
    """The lag of each of ``regions`` (empty: all), by the last heartbeat that a version has taken.

    Raises :class:`UpsertRefusedError`: ``no-heartbeats`` for a table that expects none, ``no-region`` for a region that
    its config does not name."""
    upsert = require_heartbeats(config, regions)
    assert upsert.heartbeat_ms is not None
    last = {} if record.stream is None else record.stream.last()
    published_ms = {version.version: version.at_ms for version in record.published}
    return lags(regions or upsert.regions, last, upsert.heartbeat_ms, now_ms, published_ms)


def require_heartbeats(config: TableConfig, regions: Collection[str] = ()) -> UpsertConfig:
    """The upsert config of a table that expects heartbeats of ``regions``. Raises what :func:`heartbeat_lags`
    raises."""
    upsert = config.upsert
    if upsert is None or upsert.heartbeat_ms is None:
        raise UpsertRefusedError(
            "no-heartbeats",
            "it expects no heartbeats",
            table=config.name,
            hint="Set upsertConfig.regions and upsertConfig.heartbeatInterval.",
        )
    if unknown := sorted(set(regions) - set(upsert.regions)):
        detail = f"its config names no region {unknown[0]!r}; it has {', '.join(upsert.regions)}"
        raise UpsertRefusedError("no-region", detail, table=config.name)
    return upsert
