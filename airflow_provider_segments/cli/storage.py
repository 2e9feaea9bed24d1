"""What the commands about the cluster's object stores do. Each takes a :class:`~.run.Call`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_segments.cli.output import Cell, age
from airflow_provider_segments.cli.run import Call
from airflow_provider_segments.text import count

if TYPE_CHECKING:
    from airflow_provider_segments.core.binding import BoundStore


def show(call: Call) -> None:
    """``segments storage show``"""
    from airflow_provider_segments.core.binding import bound_stores

    bound = bound_stores(call.store.cluster)
    if call.out.as_json:
        call.out.document({role: _document(store) for role, store in bound.items()})
    elif not bound:
        call.note("the cluster is bound to no store yet: its first push does that")
    else:
        now = call.store.clock.now_ms()
        rows = [
            [Cell(role), Cell(store.uri), Cell(store.id), Cell(age(now - store.bound_ms))]
            for role, store in bound.items()
        ]
        call.out.table(["STORE", "ADDRESS WHEN BOUND", "ID", "BOUND FOR"], rows)


def rebind(call: Call) -> None:
    """``segments storage rebind``"""
    from airflow_provider_segments.core import moving
    from airflow_provider_segments.core.binding import StoreRole

    role = StoreRole.TIERED if call.args.tiered else StoreRole.PRIMARY
    done = moving.rebind(call.store.cluster, role, force=call.args.force)
    if call.out.as_json:
        before = None if done.before is None else _document(done.before)
        call.out.document(
            {"role": role.value, "before": before, "after": _document(done.after), "looked_at": done.looked_at}
        )
        return
    was = "no store" if done.before is None else f"{done.before.uri} (store {done.before.id})"
    call.out.line(f"{role.value} storage is {done.after.uri} (store {done.after.id}); it was {was}")
    if not call.args.force:
        call.out.line(f"{count(done.looked_at, 'registered object')} looked for, and found there")


def _document(store: BoundStore) -> dict[str, object]:
    return {"id": store.id, "uri": store.uri, "bound_ms": store.bound_ms}
