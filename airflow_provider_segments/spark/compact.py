"""The compaction job: one Spark application merges or splits the segments of many time chunks.

Each group of inputs is a lineage replacement of its own: started, written, staged, checked, ended. So appends never
wait and never make a compaction start over, a compacted chunk is rolled back like any push, one chunk's failure stops
no other, and the inputs leave by two-phase deletion. The inputs are read under a reader's lease.

Spark distributes the groups. A worker merges a group with Arrow (:mod:`.merging`); a group that is too large for a
worker's memory is built anew by Spark's own sort (:mod:`.build`).
"""

from __future__ import annotations

import argparse
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from airflow_provider_segments.arrow.writing import WriteJob
from airflow_provider_segments.core.compaction.locks import LEASE_MS, choose_lock, in_the_way
from airflow_provider_segments.core.compaction.plan import CompactionGroup, SkippedChunk, make_plan
from airflow_provider_segments.core.compaction.settings import CompactionSettings, Policy
from airflow_provider_segments.core.locking import Lock, granted_lock
from airflow_provider_segments.core.locking.renewal import keep_leases
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Granularity, Interval, parse_time
from airflow_provider_segments.core.model.names import MAX_TEXT
from airflow_provider_segments.core.model.period import parse_period
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.replacement.end import INPUTS_OVERWRITTEN
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.replacement.start import StartedEntry
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import (
    EndRefusedError,
    InvalidConfigError,
    LockDeniedError,
    SegmentsError,
    StartRefusedError,
)
from airflow_provider_segments.spark import application
from airflow_provider_segments.spark.build import build_segments
from airflow_provider_segments.spark.merge_queue import MergeQueue, merge_queue
from airflow_provider_segments.spark.merging import Merged, MergeInput, MergeJob, MergeMismatchError
from airflow_provider_segments.spark.read import read_files
from airflow_provider_segments.spark.schema import schema_of

MEMORY_BYTES = 1 << 30
"""Decoded bytes of one group that a Python worker takes on, by default. Sorting needs about three times as much."""

STAGER = "compact"

_AHEAD = 4  # groups that wait for a core, so that several go to Spark in one job
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class CompactedGroup:
    """What became of one group. ``how`` is ``merge`` (in a worker) or ``spark``; ``error`` is empty when it was
    published. ``left_alone`` says why nothing was done after all: somebody was faster. Rows and bytes are totals of
    inputs and outputs."""

    chunk: str
    reason: str
    inputs: int
    rows_before: int
    bytes_before: int
    entry_id: str = ""
    outputs: int = 0
    rows_after: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    how: str = "merge"
    error: str = ""
    left_alone: str = ""


@dataclass(slots=True)
class CompactionReport:
    """All groups of a run, in the order of the plan, and the chunks that were left alone."""

    table: str
    dry_run: bool
    groups: list[CompactedGroup] = field(default_factory=list)
    skipped: tuple[SkippedChunk, ...] = ()

    @property
    def failed(self) -> list[CompactedGroup]:
        """Groups that were not published."""
        return [group for group in self.groups if group.error]

    def as_dict(self) -> dict[str, object]:
        """Plain data, for XCom, JSON and logs; skipped chunks as counts by reason."""
        skipped: dict[str, int] = {}
        for chunk in self.skipped:
            skipped[chunk.reason] = skipped.get(chunk.reason, 0) + 1
        return {
            "table": self.table,
            "dry_run": self.dry_run,
            "groups": [{name: getattr(group, name) for name in group.__slots__} for group in self.groups],
            "inputs": sum(group.inputs for group in self.groups if not group.error),
            "outputs": sum(group.outputs for group in self.groups),
            "failed": len(self.failed),
            "skipped": skipped,
        }


def compact_table(
    spark: SparkSession,
    table: Table,
    settings: CompactionSettings | None = None,
    *,
    identity: str,
    start: int | None = None,
    end: int | None = None,
    locked: Collection[Interval] = (),
    dry_run: bool = False,
    memory_bytes: int = MEMORY_BYTES,
    progress: Callable[[CompactedGroup], None] | None = None,
) -> CompactionReport:
    """Compact what of ``[start, end)`` (UTC milliseconds) needs it; ``settings`` are the table's own by default.

    ``identity`` names the work (for Airflow: DAG id, run id and task), so that a retry finds and finishes or gives up
    what an earlier attempt began. ``progress`` is called after each group, from any thread. A group that fails is
    reverted and reported, and does not stop the others. Raises what planning raises: :class:`TableNotFoundError`,
    :class:`InvalidConfigError`, :class:`MetadataUnavailableError`.
    """
    config = table.config()
    settings = settings or CompactionSettings.of(config)
    _check_columns(config, settings)
    with table.snapshot(start, end, owner=f"compaction {identity}"[:MAX_TEXT]) as taken:
        locks = table.locks.locks()
        others = in_the_way(locks, identity, table.store.clock.now_ms())
        assert taken.lineage is not None
        overwrites = taken.lineage.unsettled_overwrites
        plan = make_plan(taken.segments, settings, locked=[*locked, *others], overwrites=overwrites)
        report = CompactionReport(table.name, dry_run, [_planned(group) for group in plan.groups], plan.skipped)
        if dry_run or not plan.groups:
            return report
        with merge_queue(spark.sparkContext) as merges, ThreadPoolExecutor(_threads(spark, len(plan.groups))) as pool:
            held = held_by(locks, identity)
            run = _Run(spark, table, replace_config(config, settings), settings, identity, memory_bytes, merges, held)
            for group, outcome in zip(plan.groups, report.groups, strict=True):
                pool.submit(run.compact, group, outcome, progress)
    late = [group for group in report.groups if group.left_alone]
    report.groups = [group for group in report.groups if not group.left_alone]
    report.skipped += tuple(SkippedChunk(group.chunk, group.inputs, group.left_alone) for group in late)
    return report


def held_by(locks: Iterable[Lock], identity: str) -> frozenset[str]:
    """The tasks of the work ``identity`` that hold locks: an earlier attempt of it left them."""
    return frozenset(task for lock in locks if lock.group == identity for task in lock.tasks)


def replace_config(config: TableConfig, settings: CompactionSettings) -> TableConfig:
    """The table's config as a build for these settings needs it."""
    return replace(
        config,
        granularity=settings.granularity,
        target_rows=settings.target_rows,
        sort_columns=settings.sort_columns,
        compression=settings.compression,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """What all groups share. ``held`` are the tasks that held locks when the run began. Groups write the table's
    metadata in ``turn``: two at once would only refuse each other's compare-and-set, and begin again."""

    spark: SparkSession
    table: Table
    config: TableConfig
    settings: CompactionSettings
    identity: str
    memory_bytes: int
    merges: MergeQueue
    held: frozenset[str] = frozenset()
    turn: threading.Lock = field(default_factory=threading.Lock)

    def compact(
        self, group: CompactionGroup, outcome: CompactedGroup, progress: Callable[[CompactedGroup], None] | None
    ) -> None:
        """One group, from start to end. Its errors go into its outcome: the others go on."""
        began = time.monotonic()
        try:
            self._compact(group, outcome)
        except Exception as error:  # whatever Spark or the store raises: it is this group's failure alone
            self._give_up(outcome)
            if why := _why_left_alone(error):
                outcome.left_alone = why
                _LOG.info("table %r, chunk %s: left alone: %s", self.table.name, group.chunk, error)
                return
            outcome.error = f"{type(error).__name__}: {str(error)[:500]}"
            _LOG.exception("table %r, chunk %s: not compacted", self.table.name, group.chunk)
        outcome.seconds = time.monotonic() - began
        if progress is not None:
            progress(outcome)

    def _compact(self, group: CompactionGroup, outcome: CompactedGroup) -> None:
        """Under the lock that the group needs, which is given back at the end, whatever the end."""
        box, task = self.table.locks, f"{self.identity}/{group.chunk}"
        request = choose_lock(group, self.identity, task, segment_locking=self.config.segment_locking)
        if request is None:
            self._publish(group, outcome, ())
            return
        if task in self.held:
            self._leave(task)  # what an earlier attempt held, which may have been taken since
        with self.turn:
            lock = granted_lock(self.table.name, box.acquire(request))
        try:
            with keep_leases(box, lock.group, task, LEASE_MS, [lock.lock_id]):
                self._publish(group, outcome, (HeldLock(lock.lock_id, lock.group, task),))
        finally:
            self._leave(task)

    def _leave(self, task: str) -> None:
        with self.turn:
            self.table.locks.release(self.identity, task)

    def _publish(self, group: CompactionGroup, outcome: CompactedGroup, locks: Sequence[HeldLock]) -> None:
        with self.turn:
            started = self._start(group, locks)
            outcome.entry_id = started.entry_id
        assert started.ticket is not None
        merged = self._merge(group, started, started.ticket)
        if merged.too_large:
            _LOG.info("table %r, chunk %s: left to Spark: %s", self.table.name, group.chunk, merged.too_large)
            outcome.how = "spark"
            seen = self._build(group, started)
            records = [record for _, some in self.table.staged(started.entry_id).blocks for record in some]
        else:
            seen = merged.rows_in
            records = [segment.record for segment in merged.segments]
        if started.cuts:  # the registry knows the rows of a segment, not those of a part of its time
            outcome.rows_before = seen
        self._check_rows(records, outcome)
        with self.turn:
            if merged.too_large:
                self.table.end(started.entry_id)
            else:
                self.table.publish(started.ticket, merged.segments)

    def _check_rows(self, records: Sequence[SegmentRecord], outcome: CompactedGroup) -> None:
        """Say what came out of a group, and that it is what went in. Raises :class:`MergeMismatchError`."""
        rows = sum(record.rows for record in records)
        if not (self.settings.deduplicate or self.settings.rollup) and rows != outcome.rows_before:
            raise MergeMismatchError(f"{outcome.rows_before} rows went in, {rows} came out; nothing is published")
        outcome.outputs, outcome.rows_after = len(records), rows
        outcome.bytes_after = sum(record.bytes for record in records)

    def _start(self, group: CompactionGroup, locks: Sequence[HeldLock]) -> StartedEntry:
        """The entry of an earlier attempt of the same work is gone on with only if it replaces the same segments."""
        names = [segment.name for segment in group.segments]
        start = partial(
            self.table.start,
            names,
            identity=f"{self.identity}/{group.chunk}",
            locks=locks,
            rewrite=group.chunk,
            stager=STAGER,
        )
        started = start()
        if set(started.segments_from) == set(names):
            return started
        self.table.abort(started.entry_id)
        return start()

    def _give_up(self, outcome: CompactedGroup) -> None:
        """Free the inputs for others. If even that fails, the clean-up does it when the entry is old enough."""
        if not outcome.entry_id:
            return
        try:
            self.table.abort(outcome.entry_id)
        except SegmentsError as error:
            _LOG.warning("entry %s could not be reverted: %s", outcome.entry_id, error)

    def _merge(self, group: CompactionGroup, started: StartedEntry, ticket: StageTicket) -> Merged:
        return self.merges.merge(self._job(group, started, ticket))

    def _job(self, group: CompactionGroup, started: StartedEntry, ticket: StageTicket) -> MergeJob:
        write = WriteJob.of(self.config, ticket, self.table.storage, self.settings.fingerprint)
        return MergeJob(
            write,
            tuple(
                MergeInput(
                    one.key,
                    one.tiered is not None,
                    tuple((part.start_ms, part.end_ms) for part in started.cuts.get(one.name, ())),
                )
                for one in group.segments
            ),
            self.config.time_column,
            self.config.time_format,
            self.settings.deduplicate,
            self.settings.rollup,
            self.memory_bytes,
            self.table.store.tiered,
        )

    def _build(self, group: CompactionGroup, started: StartedEntry) -> int:
        """Spark's own sort; returns how many rows went in. It opens an attempt of its own, which shuts out the one that
        has not written anything."""
        keys = {segment.key for segment in group.segments}
        source = self.table.snapshot(group.interval.start_ms, group.interval.end_ms)  # the run's lease holds it, too
        rows = read_files(self.spark, source, keys, schema_of(source), self.config)
        seen = rows.count() if started.cuts else group.rows
        if self.settings.deduplicate:
            raise InvalidConfigError(
                f"chunk {group.chunk} is too large to be deduplicated by one worker; raise its memory, "
                "or compact to a finer granularity"
            )
        if self.settings.rollup:
            how = {name: F.sum if kind == "count" else getattr(F, kind) for name, kind in self.settings.rollup}
            grouped = rows.groupBy(*(name for name in rows.columns if name not in how))
            rows = grouped.agg(*(call(name).alias(name) for name, call in how.items())).select(*rows.columns)
        build_segments(
            self.spark,
            self.table,
            started.entry_id,
            rows,
            stager=STAGER,
            config=self.config,
            fingerprint=self.settings.fingerprint,
        )
        return seen


def _threads(spark: SparkSession, groups: int) -> int:
    """Groups at work at once: as many as Spark has cores, as many again that are announced meanwhile or are published,
    and a few more. No others hold locks."""
    return max(1, min(groups, 2 * spark.sparkContext.defaultParallelism + _AHEAD))


def _why_left_alone(error: Exception) -> str:
    """Why a group that somebody else was faster with is left to the next run; empty for any other error."""
    if isinstance(error, LockDeniedError):
        return "locked meanwhile"
    if isinstance(error, StartRefusedError):
        return "changed meanwhile"
    if isinstance(error, EndRefusedError) and error.rule == INPUTS_OVERWRITTEN:
        return "overwritten meanwhile"
    return ""


def _planned(group: CompactionGroup) -> CompactedGroup:
    return CompactedGroup(group.chunk, group.reason, len(group.segments), group.rows, group.bytes)


def _check_columns(config: TableConfig, settings: CompactionSettings) -> None:
    """What can be known to be wrong before anything is read."""
    if config.time_column in dict(settings.rollup):
        raise InvalidConfigError(f"table {config.name!r}: the time column cannot be aggregated")


def main(argv: Sequence[str] | None = None) -> int:
    """The application for ``spark-submit``. Returns the exit code: 1 when a group was not published."""
    arguments = _parser().parse_args(argv)

    def work(spark: SparkSession, table: Table) -> int:
        report = compact_table(
            spark,
            table,
            _settings(table.config(), arguments),
            identity=arguments.identity,
            start=arguments.start,
            end=arguments.end,
            dry_run=arguments.dry_run,
            memory_bytes=arguments.memory_bytes,
            progress=_say,
        )
        for group in report.groups if arguments.dry_run else ():
            _LOG.info("would compact %s: %d segments; %s", group.chunk, group.inputs, group.reason)
        totals = {**report.as_dict(), "groups": len(report.groups)}
        _LOG.info("compaction of table %r: %s", table.name, json.dumps(totals))
        return 1 if report.failed else 0

    return application.run("segments-compact", arguments, work)


def _say(group: CompactedGroup) -> None:
    if group.error:
        _LOG.error("chunk %s: %s", group.chunk, group.error)
        return
    _LOG.info(
        "chunk %s: %d segments became %d, %d rows, %d bytes, %.1f s (%s)",
        group.chunk, group.inputs, group.outputs, group.rows_after, group.bytes_after, group.seconds, group.how,
    )  # fmt: skip


def _settings(config: TableConfig, arguments: argparse.Namespace) -> CompactionSettings:
    given = {
        "policy": Policy(arguments.policy),
        "skip_offset_ms": parse_period(arguments.skip_offset),
        "granularity": None if arguments.granularity is None else Granularity.parse(arguments.granularity),
        "target_rows": arguments.target_rows,
        "max_groups": arguments.max_groups,
        "deduplicate": tuple(arguments.deduplicate.split(",")) if arguments.deduplicate else None,
        "rollup": tuple(tuple(one.split("=", 1)) for one in arguments.rollup) or None,
    }
    return CompactionSettings.of(config, **{name: value for name, value in given.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    parser = application.parser("compact_segments.py", "Merge small segments of a table and split large ones.")
    parser.add_argument("--identity", required=True, help="names the work, so that a retry goes on with it")
    parser.add_argument("--start", type=parse_time, help="compact from this time on (ISO 8601, UTC)")
    parser.add_argument("--end", type=parse_time, help="compact what is before this time")
    parser.add_argument("--policy", choices=[policy.value for policy in Policy], default=Policy.NEWEST_FIRST.value)
    parser.add_argument("--skip-offset", default="0s", help="leave alone what is this close to the latest segment: 1d")
    parser.add_argument("--granularity", help="HOUR, DAY, WEEK, MONTH, YEAR or ALL; by default the table's")
    parser.add_argument("--target-rows", type=int, help="rows of one segment; by default the table's")
    parser.add_argument("--max-groups", type=int, help="most time chunks of this run")
    parser.add_argument("--deduplicate", help="key columns, joined by commas: the last row of each key is kept")
    parser.add_argument("--rollup", action="append", default=[], metavar="COLUMN=sum|count|min|max")
    parser.add_argument("--memory-bytes", type=int, default=MEMORY_BYTES, help="decoded bytes a worker takes on")
    parser.add_argument("--dry-run", action="store_true", help="say what would be compacted, and why")
    return parser
