"""What the commands about heartbeats do. Each takes a :class:`~.run.Call`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.cli.output import Cell, age
from airflow_provider_segments.cli.run import Call
from airflow_provider_segments.cli.types import KAFKA
from airflow_provider_segments.core.replication.heartbeat import CLOCK_AHEAD, HEARD, SILENT
from airflow_provider_segments.core.upsert.lag import heartbeat_lags
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.text import count

if TYPE_CHECKING:
    from airflow_provider_segments.upsert.event_source import EventSource

_COLOURS = {HEARD: "green", SILENT: "red", CLOCK_AHEAD: "yellow"}


def heartbeats(call: Call) -> None:
    """``segments heartbeats TABLE``"""
    table = call.store.table(call.args.table)
    lags = heartbeat_lags(table.config(), require_record(table.lineage()), call.store.clock.now_ms())
    if call.out.as_json:
        regions = [
            {name: getattr(one, name) for name in (*one.__struct_fields__, "is_silent")} for one in lags.values()
        ]
        call.out.document({"table": table.name, "regions": regions})
        return
    rows = [
        [
            Cell(one.region),
            Cell("never" if one.lag_ms is None else age(one.lag_ms)),
            Cell(one.state, _COLOURS[one.state]),
        ]
        for one in lags.values()
    ]
    call.out.table(["REGION", "LAST HEARD", "STATE"], rows)


def checkpoint(call: Call) -> None:
    """``segments checkpoint TABLE TIME --region REGION``"""
    table = call.store.table(call.args.table)
    version = table.checkpoint(call.args.time, region=call.args.region)
    if call.out.as_json:
        call.out.document({"table": table.name, "region": call.args.region, "version": version})
    else:
        call.out.line(str(version))


def repair(call: Call) -> None:
    """``segments repair TABLE --source REGION=PLACE [--kafka-settings FILE] [--apply]``"""
    from airflow_provider_segments.upsert.repair import plan_repair

    table = call.store.table(call.args.table)
    plan = plan_repair(table, call.store.table(call.args.findings or f"{table.name}_findings"))
    if call.args.apply:
        plan.write(_sources(call))
    if call.out.as_json:
        keys = {name: getattr(plan, name) for name in ("keys", "elsewhere", "gone")}
        call.out.document({"table": table.name, "applied": call.args.apply, **keys})
        return
    done = "were written again" if call.args.apply else "would be written again; nothing was changed (--apply writes)"
    call.out.line(f"{count(len(plan.keys), 'row')} of table {table.name} {done}")
    for key in plan.keys:
        call.out.line(f"  {key}")
    if plan.elsewhere:
        call.out.line(
            f"{count(len(plan.elsewhere), 'key')} must be repaired from the other region, which has newer rows"
        )
    if plan.gone:
        call.out.line(f"{count(len(plan.gone), 'key')} changed here since the comparison; compare again")


def _sources(call: Call) -> dict[str, EventSource]:
    """The source of each region that the command names."""
    from airflow_provider_segments.upsert.file_source import FileSource
    from airflow_provider_segments.upsert.kafka_source import KafkaSource

    settings = _kafka_settings(call.args.kafka_settings)
    return {
        region: KafkaSource(where.removeprefix(KAFKA), settings) if where.startswith(KAFKA) else FileSource(Path(where))
        for region, where in call.args.source
    }


def _kafka_settings(file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        settings = json.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"the settings of the Kafka client cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise InvalidConfigError(f"the settings of the Kafka client in {file!r} are no JSON object")
    return settings
