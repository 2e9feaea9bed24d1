"""The regions of upsert tables: how long ago each was heard, and what the last comparisons with others have found."""

from __future__ import annotations

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.replication.comparisons import ComparisonRecord, read_comparisons
from airflow_provider_segments.core.replication.heartbeat import Lag
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.upsert.lag import heartbeat_lags, partitions_heard
from airflow_provider_segments.core.upsert.record import UpsertRecord, require_record
from airflow_provider_segments.exceptions import MetadataUnavailableError, SegmentsError
from airflow_provider_segments.plugins.models import (
    ComparisonRow,
    PartitionRow,
    RegionRow,
    Regions,
    TableRegions,
)
from airflow_provider_segments.plugins.overview import Opened


def list_regions(opened: Opened) -> Regions:
    """The upsert tables that are fed from regions, each in full. One that cannot be read says why."""
    names = [name for name, config in opened.facts.configs().items() if has_regions(config)]
    return Regions(tables=[_table_or_error(opened, name) for name in names])


def has_regions(config: TableConfig) -> bool:
    """Return True for an upsert table whose config names regions."""
    return config.upsert is not None and "" not in config.upsert.regions


def _table_or_error(opened: Opened, name: str) -> TableRegions:
    try:
        return describe_table_regions(opened, name)
    except MetadataUnavailableError:
        raise
    except SegmentsError as error:
        return TableRegions(table=name, error=str(error))


def describe_table_regions(opened: Opened, name: str) -> TableRegions:
    """The regions of one table; a table without any, or one that was dropped, has none. Raises what reading it
    raises."""
    table = opened.store.table(name)
    config, lineage = table.config(), table.lineage()
    if config.upsert is None or not has_regions(config) or lineage.dropped_by is not None:
        return TableRegions(table=name)
    compared = read_comparisons(opened.store.cluster, name)
    return TableRegions(
        table=name,
        interval_ms=config.upsert.heartbeat_ms,
        regions=_regions(table, config, require_record(lineage), behind_in(compared)),
        comparisons=[_comparison(one) for one in compared],
    )


def behind_in(compared: tuple[ComparisonRecord, ...]) -> dict[str, int]:
    """By source partition, by how many offsets the table was behind the other that had read most of it."""
    found: dict[str, int] = {}
    for one in compared:
        for source, offsets in one.behind.items():
            found[source] = max(offsets, found.get(source, 0))
    return found


def _regions(table: Table, config: TableConfig, record: UpsertRecord, behind: dict[str, int]) -> list[RegionRow]:
    assert config.upsert is not None
    now_ms = table.store.clock.now_ms()
    lags = {} if config.upsert.heartbeat_ms is None else heartbeat_lags(config, record, now_ms)
    last = {} if record.stream is None else record.stream.last()
    return [
        RegionRow(
            region=region,
            state=region_state(lags.get(region)),
            lag_ms=lags[region].lag_ms if region in lags else None,
            heard_ms=last[region].time_ms if region in last else None,
            partitions=[
                PartitionRow(
                    partition=part,
                    position=record.positions.get(f"{region}/{part}", 0),
                    lag_ms=None if heard is None else max(now_ms - heard, 0),
                    behind=behind.get(f"{region}/{part}", 0),
                )
                for part, heard in partitions_heard(record, region).items()
            ],
        )
        for region in config.upsert.regions
    ]


def region_state(lag: Lag | None) -> str:
    """How a region stands, in the words of ``segments heartbeats``; ``None`` where no heartbeats are expected."""
    if lag is None:
        return "no heartbeats"
    return "never" if lag.lag_ms is None else lag.state


def _comparison(record: ComparisonRecord) -> ComparisonRow:
    return ComparisonRow(
        other=record.other,
        at_ms=record.at_ms,
        version=record.version,
        other_version=record.other_version,
        counts=record.counts,
        has_diverged=record.has_diverged,
        other_behind=record.other_behind,
        findings=record.findings,
        entry_id=record.entry_id,
    )
