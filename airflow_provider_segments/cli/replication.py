"""What the commands about heartbeats do. Each takes a :class:`~.run.Call`."""

from __future__ import annotations

from airflow_provider_segments.cli.output import Cell, age
from airflow_provider_segments.cli.run import Call
from airflow_provider_segments.core.replication.heartbeat import Lag
from airflow_provider_segments.core.upsert.lag import heartbeat_lags
from airflow_provider_segments.core.upsert.record import require_record


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
        [Cell(one.region), Cell("never" if one.lag_ms is None else age(one.lag_ms)), _state(one)]
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


def _state(lag: Lag) -> Cell:
    if lag.is_silent:
        return Cell("silent", "red")
    return Cell("clock ahead", "yellow") if lag.is_ahead else Cell("heard", "green")
