"""Metrics through Airflow's own: PIP-186's, and how upsert tables stand.

===================================== ======= ==========================================================================
name                                  kind    what it counts
===================================== ======= ==========================================================================
``segments.ledgers.sent.<type>``      counter deletion messages queued, by ledger type (``Ledger``, ``Offload-Ledger``)
``segments.ledgers.deleted.<type>``   counter objects deleted
``segments.ledgers.received``         counter deliveries of messages
``segments.ledgers.acknowledged``     counter deliveries that were the message's last
``segments.ledgers.retried``          counter deliveries that were put off: something may need the object, or it failed
``segments.ledgers.failed``           counter deliveries whose attempt failed, also the one that made a dead letter
``segments.ledgers.open``             counter deliveries whose settlement was lost: another consumer has them again
``segments.ledgers.dead_lettered``    counter messages given up
``segments.ledgers.redriven``         counter dead letters enqueued anew
``segments.ledgers.orphans_enqueued`` counter objects that nothing refers to, queued by a reconciliation
``segments.ledgers.mismatch``         counter objects that are not what the message says, and were kept
``segments.ledgers.already_gone``     counter objects that were missing
``segments.ledgers.stale``            counter messages about segments that are in use
``segments.ledgers.malformed``        counter messages that cannot be read
``segments.ledgers.freed_bytes``      counter bytes of the objects deleted
``segments.ledgers.in_flight``        gauge   messages that will still be delivered: pending and retry
``segments.ledgers.dead_letters``     gauge   dead letters now
===================================== ======= ==========================================================================

``acknowledged = received - retried - open`` at every moment.

===================================== ======= ==========================================================================
``segments.upsert.version.<table>``   gauge   the newest version of an upsert table
``segments.upsert.age_ms.<table>``    gauge   how long ago it was published
``segments.upsert.waiting.<table>``   gauge   ordinary pushes that no run of ingestion has resolved yet
``segments.upsert.behind.<table>``    gauge   versions that the slowest reader with a copy is behind
``segments.upsert.silent.<table>``    gauge   readers with copies that have not reported for ten minutes
``segments.upsert.ingested.<table>``  gauge   events that were compared with the rows of their keys, since the table is
``segments.upsert.replayed.<table>``  gauge   of these, events that had been there
``segments.upsert.late.<table>``      gauge   of these, events that were older than the row that their key had
``segments.upsert.expired.<table>``   gauge   events that were older than the cutoff, and were dropped
``segments.upsert.rejected.<table>``  gauge   events that could not be used
===================================== ======= ==========================================================================

Of tables that expect heartbeats, with the region's name at the end:

=============================================== ======= ================================================================
``segments.heartbeats.lag_ms.<table>.<region>`` gauge   how long ago the region was heard; absent before
``segments.heartbeats.silent.<table>.<region>`` gauge   1 when too many heartbeats are missing, or none ever came
``segments.heartbeats.ahead.<table>.<region>``  gauge   1 when the last heartbeat is more than a minute in the future
=============================================== ======= ================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from airflow.sdk.observability import stats

if TYPE_CHECKING:
    from airflow_provider_segments.core.deletion.messages import Backlog
    from airflow_provider_segments.core.deletion.report import DeletionReport
    from airflow_provider_segments.core.replication.heartbeat import Lag
    from airflow_provider_segments.core.table import Table

PREFIX = "segments.ledgers."


def count(counts: Mapping[str, int]) -> None:
    """Add to counters, by their names below ``segments.ledgers``."""
    for name, number in sorted(counts.items()):
        if number:
            stats.incr(PREFIX + name, number)


def count_sent(sent: Mapping[str, int]) -> None:
    """Messages that were queued, by ledger type."""
    count({f"sent.{kind}": number for kind, number in sent.items()})


def gauge_backlog(backlog: Backlog) -> None:
    """What waits now."""
    stats.gauge(PREFIX + "in_flight", backlog.in_flight)
    stats.gauge(PREFIX + "dead_letters", backlog.dead)


def gauge_upsert(table: Table) -> None:
    """How an upsert table stands after a run of ingestion or a compaction."""
    from airflow_provider_segments.core.upsert.marks import SILENT_MS, HeldVersions, low_water_mark
    from airflow_provider_segments.core.upsert.record import require_record, waiting_bulks

    lineage, now_ms = table.lineage(), table.store.clock.now_ms()
    record = require_record(lineage)
    held = HeldVersions(table.store.cluster, table.name).read()
    gauges = {
        "version": record.clock,
        "waiting": len(waiting_bulks(lineage, record)),
        "behind": record.clock - low_water_mark(record.clock, held),
        "silent": sum(one.is_silent(now_ms, SILENT_MS) for one in held),
    }
    gauges |= msgspec.structs.asdict(record.events)
    if record.published:
        gauges["age_ms"] = max(now_ms - record.published[-1].at_ms, 0)
    for name, value in gauges.items():
        stats.gauge(f"segments.upsert.{name}.{table.name}", value)


def gauge_heartbeats(table: str, lags: Mapping[str, Lag]) -> None:
    """How long ago each region of the table was heard."""
    for region, lag in lags.items():
        stats.gauge(f"segments.heartbeats.silent.{table}.{region}", int(lag.is_silent))
        stats.gauge(f"segments.heartbeats.ahead.{table}.{region}", int(lag.is_ahead))
        if lag.lag_ms is not None:
            stats.gauge(f"segments.heartbeats.lag_ms.{table}.{region}", lag.lag_ms)


class DrainMeter:
    """Counts what a drain does while it does it, so that one that breaks off has counted what it did."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def update(self, report: DeletionReport) -> None:
        """Count what is new in the totals of ``report``."""
        now = totals(report)
        count(now - self._counted)
        self._counted = now


def totals(report: DeletionReport) -> Counter[str]:
    """A report's totals by the names of the counters."""
    by_type = {f"deleted.{kind.value}": number for (what, kind), number in report.counts.items() if what == "deleted"}
    return Counter(
        {
            **by_type,
            "sent.Ledger": report.found,  # a sweep finds ledgers in primary storage, and sends messages about them
            "received": report.deliveries,
            "acknowledged": report.acknowledged,
            "retried": report.retried,
            "failed": report.total("failed", "dead"),
            "open": report.open,
            "dead_lettered": report.total("dead"),
            "freed_bytes": report.bytes,
            **{name: report.total(name) for name in ("mismatch", "already_gone", "stale", "malformed")},
        }
    )
