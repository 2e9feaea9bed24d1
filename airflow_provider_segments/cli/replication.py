"""What the commands about heartbeats do. Each takes a :class:`~.run.Call`."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_segments.cli.output import Cell, age
from airflow_provider_segments.cli.run import Call
from airflow_provider_segments.core.replication.heartbeat import Lag
from airflow_provider_segments.core.upsert.lag import heartbeat_lags
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.text import count


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


def repair(call: Call) -> None:
    """``segments repair TABLE --source REGION=FOLDER [--apply]``"""
    from airflow_provider_segments.upsert.repair import plan_repair

    table = call.store.table(call.args.table)
    plan = plan_repair(table, call.store.table(call.args.findings or f"{table.name}_findings"))
    folders = {region: Path(folder) for region, folder in call.args.source}
    if call.args.apply:
        plan.write(folders)
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


def _state(lag: Lag) -> Cell:
    if lag.is_silent:
        return Cell("silent", "red")
    return Cell("clock ahead", "yellow") if lag.is_ahead else Cell("heard", "green")
