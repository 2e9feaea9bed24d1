"""Start, end, revert and unrevert of a segment replacement."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_segments.operators.base import (
    AnnouncingOperator,
    SegmentsOperator,
    names_given,
    parse_names,
    task_identity,
    truth,
)
from airflow_provider_segments.operators.locks import given_locks

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.core.replacement.revert import RevertedEntry
    from airflow_provider_segments.core.replacement.unrevert import UnrevertedEntry
    from airflow_provider_segments.core.table import Table

EVERYTHING = "all"
_RESOLVED = "segments_entry_id"


class StartReplaceSegmentsOperator(SegmentsOperator):
    """Announce a replacement. Nothing changes for readers; the build writes below the entry that this makes.

    Returns the entry's id; the XCom ``entry`` holds the details. The entry belongs to the DAG run and the task, not
    to the attempt: a retry finds the entry that the attempt before it made::

        start = StartReplaceSegmentsOperator(task_id="start", table="flights")
        end = EndReplaceSegmentsOperator(task_id="end", table="flights", entry_id=start.output)

    :param segments_from: Names of the segments to replace, or ``"all"``. Default: everything visible on a REFRESH
        table, nothing on an APPEND table. (templated)
    :param segments_to: Names of the segments that replace them, when they are known already. (templated)
    :param force_cleanup: Revert an unfinished entry that stands in the way, and mark the snapshot before the present
        one for deletion. (templated)
    :param locks: The locks that the push relies on, as :class:`AcquireSegmentLockOperator` returned them, one or a
        list: staging and ending are refused once one of them is lost. (templated)
    """

    template_fields: Sequence[str] = (
        *SegmentsOperator.template_fields,
        "segments_from",
        "segments_to",
        "force_cleanup",
        "locks",
    )

    def __init__(
        self,
        *,
        segments_from: Sequence[str] | str | None = None,
        segments_to: Sequence[str] = (),
        force_cleanup: bool | str = False,
        locks: Any = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.segments_from = segments_from
        self.segments_to = names_given(segments_to, "segments_to")
        self.force_cleanup = force_cleanup
        self.locks = locks
        self._killed = False

    def on_kill(self) -> None:
        """Airflow lets a task that it wants to end run on for some seconds; see :meth:`execute`."""
        self._killed = True

    def execute(self, context: Context) -> str:
        """Start the replacement, or find the one an earlier attempt started."""
        locks = [one.held for one in given_locks(self.locks)]
        with self.open_table() as table:
            started = table.start(
                self._replaced(),
                parse_names(self.segments_to, "segments_to"),
                identity=task_identity(context, self.hook),
                force_cleanup=truth(self.force_cleanup, "force_cleanup"),
                locks=locks,
            )
            if self._killed:
                # The task that reverts an unfinished push may have looked before our entry was there.
                table.abort(started.entry_id)
                raise AirflowFailException(f"killed while it started entry {started.entry_id}, which is reverted")
        self.log.info(
            "%s entry %s of table %s; it replaces %d segments. Readers see no change until it ends. "
            "To give it up: segments revert %s %s --force",
            "Found" if started.resumed else "Started",
            started.entry_id,
            self.table,
            len(started.segments_from),
            self.table,
            started.entry_id,
        )
        for reverted in started.reverted:
            self.log.warning("force_cleanup reverted the unfinished entry %s.", reverted)
        context["ti"].xcom_push(
            key="entry",
            value={
                "table": self.table,
                "segments_conn_id": self.segments_conn_id,
                "entry_id": started.entry_id,
                "segments_from": len(started.segments_from),
                "resumed": started.resumed,
                "reverted": list(started.reverted),
            },
        )
        return str(started.entry_id)

    def _replaced(self) -> Any:
        if not isinstance(self.segments_from, str):
            return self.segments_from
        if self.segments_from != EVERYTHING:
            raise ValueError(f"segments_from must be a list of names or {EVERYTHING!r}, not {self.segments_from!r}")
        from airflow_provider_segments.core.replacement.start import ALL_VISIBLE

        return ALL_VISIBLE


class EndReplaceSegmentsOperator(AnnouncingOperator):
    """Make the staged segments of an entry visible and hide what they replace, in one compare-and-set.

    A retry of an ``end`` that had succeeded succeeds. Returns rows, segments, bytes and the milliseconds of the switch,
    and emits an event of the table's asset::

        EndReplaceSegmentsOperator(task_id="end", table="flights", entry_id="{{ ti.xcom_pull(task_ids='start') }}")

    :param entry_id: The entry. (templated)
    :param segments_to: The staged segments to make visible; default all of them. (templated)
    :param allow_empty: Whether an entry without segments may end: it then only hides what it replaces. (templated)
    """

    template_fields: Sequence[str] = (*SegmentsOperator.template_fields, "entry_id", "segments_to", "allow_empty")

    def __init__(
        self,
        *,
        entry_id: str,
        segments_to: Sequence[str] | None = None,
        allow_empty: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.entry_id = entry_id
        self.segments_to = names_given(segments_to, "segments_to")
        self.allow_empty = allow_empty

    def execute(self, context: Context) -> dict[str, Any]:
        """End the replacement."""
        from airflow_provider_segments.core.replacement.end import NOT_BUILT
        from airflow_provider_segments.exceptions import EndRefusedError

        with self.open_table() as table:
            try:
                ended = table.end(self.entry_id, self.segments_to, allow_empty=truth(self.allow_empty, "allow_empty"))
            except EndRefusedError as error:
                if error.rule != NOT_BUILT:
                    raise
                raise AirflowFailException(f"{error} {self._what_to_clear()}") from error
        result = {
            "table": self.table,
            "entry_id": ended.entry_id,
            "rows": ended.rows,
            "segments": len(ended.segments_to),
            "bytes": ended.bytes,
            "replaced": len(ended.segments_from),
            "switch_ms": round(ended.switch_ms, 3),
            "already": ended.already,
        }
        self.log.info(
            "%s entry %s: %d rows in %d segments (%d bytes) of table %s are visible, %d segments are hidden; "
            "the switch took %.1f ms. To undo it: segments revert %s %s",
            "An earlier attempt had completed" if ended.already else "Completed",
            ended.entry_id,
            ended.rows,
            len(ended.segments_to),
            ended.bytes,
            self.table,
            len(ended.segments_from),
            ended.switch_ms,
            self.table,
            ended.entry_id,
        )
        brought = {"rows": ended.rows, "segments": len(ended.segments_to), "bytes": ended.bytes}
        self.announce_change(context, change="end", entry_id=ended.entry_id, **brought)
        return result

    def _what_to_clear(self) -> str:
        """Airflow clears the setups of a task with it: the start, but not the build."""
        builds = [task.task_id for task in self.get_flat_relatives(upstream=True) if hasattr(task, "stager")]
        again = " and ".join(sorted(builds)) or "the tasks that stage"
        return (
            f"Clearing {self.task_id} has cleared its start, too, and so begun another push. To push again, clear "
            f"{again} with what is downstream. To keep what is visible, mark {self.task_id} a success."
        )


class _SwitchOperator(AnnouncingOperator):
    """Base of the operators that switch a table between an entry's segments and those that it replaced."""

    template_fields: Sequence[str] = (*SegmentsOperator.template_fields, "entry_id", "allow_empty", "preview")
    change: ClassVar[str]
    would: ClassVar[str]
    has: ClassVar[str]

    def __init__(
        self, *, entry_id: str, allow_empty: bool | str = False, dry_run: bool | str = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.entry_id = entry_id
        self.allow_empty = allow_empty
        self.preview = dry_run  # BaseOperator has a method called dry_run

    @abstractmethod
    def resolve(self, table: Table) -> str:
        """The id of the entry that is meant."""

    @abstractmethod
    def look(self, table: Table, entry_id: str) -> RevertedEntry | UnrevertedEntry:
        """What the switch would do, or the refusal it would get."""

    @abstractmethod
    def switch(self, table: Table, entry_id: str, identity: str) -> RevertedEntry | UnrevertedEntry:
        """Switch."""

    def hint(self, entry_id: str) -> str:  # noqa: ARG002 - not every switch has one
        """What to do next, for the log."""
        return ""

    def execute(self, context: Context) -> dict[str, Any]:
        """Switch, or say what that would do."""
        with self.open_table() as table:
            if truth(self.preview, "dry_run"):
                return self._preview(table)
            return self._switch(context, table)

    def _preview(self, table: Table) -> dict[str, Any]:
        preview = self.look(table, self.resolve(table))
        self.log.info(
            "Dry run: would %s entry %s of table %s. Nothing was changed.", self.would, preview.entry_id, self.table
        )
        _log_change(self.log, preview)
        return {"table": self.table, **_counts(preview), "dry_run": True}

    def _switch(self, context: Context, table: Table) -> dict[str, Any]:
        entry_id = decided_once(context, lambda: self.resolve(table))
        done = self.switch(table, entry_id, task_identity(context, self.hook))
        self.log.info(
            "%s entry %s of table %s; the switch took %.1f ms.%s",
            f"An earlier attempt {self.has}" if done.already else self.has.capitalize(),
            done.entry_id,
            self.table,
            done.switch_ms,
            self.hint(done.entry_id),
        )
        _log_change(self.log, done)
        named = {"table": self.table, "segments_conn_id": self.segments_conn_id, "entry_id": done.entry_id}
        context["ti"].xcom_push(key="entry", value=named)
        visible = {} if done.after is None else {f"visible_{what}": n for what, n in done.after.as_dict().items()}
        reappeared = {"segments": len(done.reappeared)}
        self.announce_change(context, change=self.change, entry_id=done.entry_id, **reappeared, **visible)
        forget_decision(context)
        result = {"table": self.table, **_counts(done), "dry_run": False}
        return result | {"switch_ms": round(done.switch_ms, 3), "already": done.already}


class RevertReplaceSegmentsOperator(_SwitchOperator):
    """Undo a replacement: what it replaced is visible again, its own segments are hidden.

    Returns what reappeared, what was hidden, and what readers of the table saw before and see now, and emits an event
    of the table's asset. With ``dry_run`` it only says what would happen, or refuses with the words the revert itself
    would use. :class:`UnrevertReplaceSegmentsOperator` undoes it::

        RevertReplaceSegmentsOperator(task_id="rollback", table="flights", entry_id="latest")

    :param entry_id: An entry id, a unique prefix of one, or ``latest``, the newest completed entry. ``latest`` is
        refused (``behind-revert``) when an entry that was completed after it is rolled back already. (templated)
    :param force: Whether an entry in progress may be reverted. (templated)
    :param allow_empty: Whether the table may be left without visible rows. (templated)
    :param dry_run: Change nothing. (templated)
    """

    template_fields: Sequence[str] = (*_SwitchOperator.template_fields, "force")
    change, would, has = "revert", "revert", "reverted"

    def __init__(self, *, force: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.force = force

    def resolve(self, table: Table) -> str:
        """The entry; ``latest`` is refused behind a rollback."""
        entry_id = table.resolve_entry(self.entry_id)
        if self.entry_id == "latest":
            table.check_not_behind_revert(entry_id)
        return entry_id

    def look(self, table: Table, entry_id: str) -> RevertedEntry:
        """What the revert would do."""
        return table.preview_revert(entry_id, **self._how())

    def switch(self, table: Table, entry_id: str, identity: str) -> RevertedEntry:
        """Revert."""
        return table.revert(entry_id, **self._how(), identity=identity)

    def hint(self, entry_id: str) -> str:
        """How to take it back."""
        return f" To bring it back: segments unrevert {self.table} {entry_id}"

    def _how(self) -> dict[str, bool]:
        return {"force": truth(self.force, "force"), "allow_empty": truth(self.allow_empty, "allow_empty")}


class UnrevertReplaceSegmentsOperator(_SwitchOperator):
    """Bring back a replacement that was rolled back, into its old place, while the table still keeps it.

    Returns what reappeared, what was hidden, and what readers of the table saw before and see now, and emits an event
    of the table's asset::

        UnrevertReplaceSegmentsOperator(task_id="unrevert", table="flights", entry_id="719f4fd3")

    :param entry_id: An entry id, a unique prefix of one, or ``latest``, the one rolled back last. (templated)
    :param allow_empty: Whether the table may be left without visible rows. (templated)
    :param dry_run: Change nothing. (templated)
    """

    change, would, has = "unrevert", "bring back", "brought back"

    def resolve(self, table: Table) -> str:
        """The entry; ``latest`` is the one rolled back last."""
        from airflow_provider_segments.core.lineage.entries import EntryState

        return table.resolve_entry(self.entry_id, (EntryState.REVERTED,))

    def look(self, table: Table, entry_id: str) -> UnrevertedEntry:
        """What the unrevert would do."""
        return table.preview_unrevert(entry_id, allow_empty=truth(self.allow_empty, "allow_empty"))

    def switch(self, table: Table, entry_id: str, identity: str) -> UnrevertedEntry:
        """Bring back."""
        allow_empty = truth(self.allow_empty, "allow_empty")
        return table.unrevert(entry_id, allow_empty=allow_empty, identity=identity)


def decided_once(context: Context, resolve: Callable[[], str]) -> str:
    """The entry that ``resolve`` finds, kept in the task's state: a retry after a change that succeeded would otherwise
    find another latest entry, and change that one too."""
    kept = context.get("task_state_store")
    entry_id = None if kept is None else kept.get(_RESOLVED)
    if not isinstance(entry_id, str):
        entry_id = resolve()
        if kept is not None:
            kept.set(_RESOLVED, entry_id)
    return entry_id


def forget_decision(context: Context) -> None:
    """The work is done: the same task, cleared and run again on purpose, decides anew."""
    kept = context.get("task_state_store")
    if kept is not None:
        kept.delete(_RESOLVED)


def _counts(done: RevertedEntry | UnrevertedEntry) -> dict[str, Any]:
    return {
        "entry_id": done.entry_id,
        "reappeared": len(done.reappeared),
        "hidden": len(done.hidden),
        "before": done.before and done.before.as_dict(),
        "after": done.after and done.after.as_dict(),
    }


def _log_change(log: Any, done: RevertedEntry | UnrevertedEntry) -> None:
    """What changes for readers, in two lines."""
    log.info(
        "Visible again: %d segments%s; hidden: %d segments%s.",
        len(done.reappeared),
        _some(done.reappeared),
        len(done.hidden),
        _some(done.hidden),
    )
    if done.before is not None and done.after is not None:
        log.info(
            "What readers see: before %d rows in %d segments (%d bytes), after %d rows in %d segments (%d bytes).",
            done.before.rows,
            done.before.segments,
            done.before.bytes,
            done.after.rows,
            done.after.segments,
            done.after.bytes,
        )


def _some(names: Sequence[str]) -> str:
    """The first few of ``names`` for a log line."""
    if not names:
        return ""
    return f" ({', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''})"
