"""Both phases of deletion by hand: mark, drain, and what to do with dead letters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_segments.operators.base import ClusterOperator, SegmentsOperator, parse_names, spaced, truth
from airflow_provider_segments.operators.metrics import DrainMeter, count, gauge_backlog

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.core.deletion.report import DeletionReport

_MARKING = "segments_marking"
_NOT_OURS_MS = 10_000  # due, but in the hands of another consumer: look again then


class MarkLedgersForDeletionOperator(SegmentsOperator):
    """Mark leftover segments for deletion: those that nothing shows and no live lineage entry holds.

    Give names, or an entry: then all that is registered of it is marked, and its prefix swept. What is needed is
    refused with the rule that says why, and nothing is marked. Returns the report::

        MarkLedgersForDeletionOperator(task_id="mark", table="flights", entry_id="{{ params.entry_id }}")

    :param segments: Names of segments. (templated)
    :param entry_id: A reverted entry (id or its unique beginning), or the whole id of one that has left the lineage.
        (templated)
    """

    template_fields: Sequence[str] = (*SegmentsOperator.template_fields, "segments", "entry_id")

    def __init__(self, *, segments: Sequence[str] | None = None, entry_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.segments = segments
        self.entry_id = entry_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Mark. A retry takes segments that are no longer registered for those its first attempt marked."""
        from airflow_provider_segments.exceptions import MarkRefusedError

        if bool(self.segments) == bool(self.entry_id):
            raise AirflowFailException("give either segments or an entry_id")
        if isinstance(self.segments, str):
            raise AirflowFailException("segments must be a list of names")
        kept = context.get("task_state_store")
        again = kept is not None and kept.get(_MARKING) is not None
        if kept is not None:
            kept.set(_MARKING, "begun")
        with self.open_table() as table:
            try:
                report = table.mark_ledgers(
                    self.segments or None, entry_id=self.entry_id or None, missing_ok=again and bool(self.segments)
                )
            except MarkRefusedError as error:
                _forget(kept)
                raise AirflowFailException(str(error)) from error
        _forget(kept)
        self.log.info("Table %s: %d segments are marked for deletion.", self.table, report.segments)
        return report.as_dict()


class DeletePendingLedgersOperator(ClusterOperator):
    """Delete what is marked and due: one consumer of the deletion queue. Any number may work at once.

    Returns the report: what was received and what became of it, the bytes freed, what is still in flight. Messages that
    are put off (a reader holds a lease, storage refused) come back later; with ``max_wait`` the task waits for them and
    goes on, in the triggerer when it is deferrable::

        DeletePendingLedgersOperator(task_id="drain", max_seconds=540)

    :param max_seconds: How long to work at a time; ``None`` until nothing is due. (templated)
    :param max_ledgers: Most messages at a time. (templated)
    :param max_wait: How long to wait, in seconds from the beginning, for messages that come back. (templated)
    :param fail_on_dead_letters: Fail when messages were given up. The report is then in the XCom ``report``.
    :param deferrable: Wait in the triggerer.
    """

    template_fields: Sequence[str] = (*ClusterOperator.template_fields, "max_seconds", "max_ledgers", "max_wait")

    def __init__(
        self,
        *,
        max_seconds: float | str | None = None,
        max_ledgers: int | str | None = None,
        max_wait: float | str = 0,
        fail_on_dead_letters: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_seconds = max_seconds
        self.max_ledgers = max_ledgers
        self.max_wait = max_wait
        self.fail_on_dead_letters = fail_on_dead_letters
        self.deferrable = deferrable

    def execute(self, context: Context) -> dict[str, Any]:
        """Drain, wait, drain again, until nothing is left or the wait is over."""
        return self._work(context, {}, _now_ms())

    def resume(
        self,
        context: Context,
        event: Any,  # noqa: ARG002 - Airflow's signature
        so_far: dict[str, Any],
        began_ms: int,
    ) -> dict[str, Any]:
        """Go on after a wait in the triggerer."""
        return self._work(context, so_far, began_ms)

    def _work(self, context: Context, so_far: Mapping[str, Any], began_ms: int) -> dict[str, Any]:
        while True:
            so_far = together(so_far, self._drain().as_dict())
            due_ms = self._due(so_far, began_ms)
            if due_ms is None:
                return self._finish(context, so_far)
            self.log.info(
                "%d messages are still in flight; looking again at %s.",
                so_far["in_flight"],
                _moment(due_ms).isoformat(),
            )
            if self.deferrable:
                self._defer_until(due_ms, so_far, began_ms)
            time.sleep(max(due_ms - _now_ms(), 0) / 1000)

    def _drain(self) -> DeletionReport:
        meter = DrainMeter()
        say = spaced(lambda report: self.log.info("%s", in_words(report.as_dict())))

        def progress(report: DeletionReport) -> None:
            meter.update(report)
            say(report)

        with self.hook.get_conn() as store:
            report = store.deleter().drain(
                max_seconds=_number(self.max_seconds, float),
                max_ledgers=_number(self.max_ledgers, int),
                progress=progress,
            )
            meter.update(report)
            gauge_backlog(store.queue.backlog())
        return report

    def _due(self, report: Mapping[str, Any], began_ms: int) -> int | None:
        """When to look again, if that is within the wait."""
        until = began_ms + int(float(self.max_wait or 0) * 1000)
        due = report["next_due_ms"]
        if report["stopped"] or not report["in_flight"] or due is None:
            return None
        now = _now_ms()
        due = int(due) if due > now else now + _NOT_OURS_MS
        return due if due <= until else None

    def _defer_until(self, due_ms: int, so_far: Mapping[str, Any], began_ms: int) -> None:
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        self.defer(
            trigger=DateTimeTrigger(moment=_moment(due_ms)),
            method_name="resume",
            kwargs={"so_far": dict(so_far), "began_ms": began_ms},
        )

    def _finish(self, context: Context, report: dict[str, Any] | Mapping[str, Any]) -> dict[str, Any]:
        whole = dict(report)
        self.log.info("%s", in_words(whole))
        for reason, number in whole["errors"].items():
            self.log.warning("%d messages were put off or given up: %s", number, reason)
        if whole["dead"] and self.fail_on_dead_letters:
            context["ti"].xcom_push(key="report", value=whole)
            raise AirflowFailException(
                f"{whole['dead']} messages became dead letters: their objects stay until somebody looks. "
                "See: segments dead-letters list; after the repair: segments dead-letters redrive"
            )
        return whole


class RedriveDeadLettersOperator(ClusterOperator):
    """Enqueue dead letters anew, with all attempts before them, or forget them.

    Returns how many messages that were::

        RedriveDeadLettersOperator(task_id="redrive")

    :param ids: Ids of dead letters, or their unique beginnings, as a list or its JSON text; ``None`` for all, and an
        empty list is refused. (templated)
    :param purge: Forget them instead: their objects stay, and a reconciliation finds them. (templated)
    """

    template_fields: Sequence[str] = (*ClusterOperator.template_fields, "ids", "purge")

    def __init__(self, *, ids: Sequence[str] | str | None = None, purge: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ids = ids
        self.purge = purge

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Redrive or purge."""
        from airflow_provider_segments.core.deletion import dead_letters as dead
        from airflow_provider_segments.exceptions import CorruptRecordError, EntryNotFoundError

        purge = truth(self.purge, "purge")
        ids = None if self.ids is None else parse_names(self.ids, "ids")
        if ids == []:
            raise AirflowFailException("ids is empty: name dead letters, or give None for all of them")
        with self.hook.get_conn() as store:
            try:
                done = dead.redrive(store.queue, ids, purge=purge)
            except (EntryNotFoundError, CorruptRecordError) as error:
                raise AirflowFailException(str(error)) from error
            gauge_backlog(store.queue.backlog())
        if not purge:
            count({"redriven": done.messages})
        self.log.info("%d dead letters were %s.", done.messages, "purged" if purge else "enqueued anew")
        if done.undecodable:
            self.log.error("These cannot be decoded, only purged: %s", ", ".join(done.undecodable))
        return done.as_dict()


def _forget(kept: Any) -> None:
    """The task is done: cleared and run again on purpose, it takes nothing for its own doing."""
    if kept is not None:
        kept.delete(_MARKING)


def together(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Two drains' reports as one: numbers add up, what describes the end is the later one's."""
    merged = dict(after)
    for key, value in before.items():
        if key in ("in_flight", "next_due_ms", "stopped"):
            continue
        if isinstance(value, Mapping):
            merged[key] = together(value, merged.get(key) or {})
        else:
            merged[key] = merged.get(key, 0) + value
    return merged


def in_words(report: Mapping[str, Any]) -> str:
    """A drain's report as one line of the log."""
    rest = ", ".join(
        f"{report[name]} {text}"
        for name, text in (
            ("already_gone", "were gone already"),
            ("waiting", "wait for readers or writers"),
            ("failed", "failed and are tried again"),
            ("dead", "became dead letters"),
            ("mismatch", "did not match their objects"),
            ("stale", "are in use"),
            ("malformed", "were malformed"),
            ("open", "went to another consumer"),
        )
        if report[name]
    )
    stopped = f" Stopped at the {report['stopped']}." if report["stopped"] else ""
    return (
        f"Of {report['received']} messages {report['deleted']} objects were deleted, {report['bytes']} bytes"
        f"{f'; {rest}' if rest else ''}; {report['in_flight']} in flight.{stopped}"
    )


def _number(value: Any, kind: type[Any]) -> Any:
    """A number that may have come out of a template; nothing is no limit."""
    return None if value in (None, "", "None") else kind(value)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _moment(due_ms: int) -> datetime:
    return datetime.fromtimestamp(due_ms / 1000, tz=UTC)
