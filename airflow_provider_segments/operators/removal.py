"""Taking a table, or a stretch of its time, out of sight. A revert of the entry brings it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.core.model.interval import Interval, parse_time
from airflow_provider_segments.operators.base import AnnouncingOperator, task_identity, truth

if TYPE_CHECKING:
    from airflow.sdk import Context


class DropTableOperator(AnnouncingOperator):
    """Drop a table: one switch hides everything, and no push can start or end any more.

    A revert of the entry brings the table back until ``replacedSegmentsRetentionPeriod`` is over; then retention and
    deletion remove its objects and, in the end, its metadata. Returns the entry's id and what was visible before, and
    emits an event of the table's asset::

        DropTableOperator(task_id="drop", table="flights_2012")

    :param dry_run: Only say what would be hidden. (templated)
    """

    template_fields: Sequence[str] = (*AnnouncingOperator.template_fields, "preview")
    ui_color = "#f7e8e8"

    def __init__(self, *, dry_run: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.preview = dry_run  # BaseOperator has a method called dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        """Drop the table, or say what that would do."""
        only_look = truth(self.preview, "dry_run")
        with self.open_table() as table:
            done = table.preview_drop() if only_look else table.drop(identity=task_identity(context, self.hook))
        self.log.info(
            "%s %s: %d rows in %d segments (%d bytes); %d pushes in progress can no longer end.%s",
            "Dry run, nothing was changed; of table" if only_look else "Dropped table",
            self.table,
            done.rows,
            done.segments,
            done.bytes,
            len(done.running),
            "" if only_look else f" To bring it back: segments revert {self.table} {done.entry_id}",
        )
        if not only_look:
            self.announce_change(context, change="drop", entry_id=done.entry_id, rows=0, segments=0, bytes=0)
        return {
            "table": self.table,
            "entry_id": done.entry_id,
            "rows": done.rows,
            "segments": done.segments,
            "bytes": done.bytes,
            "already": done.already,
            "dry_run": only_look,
        }


class DeleteTimeOperator(AnnouncingOperator):
    """Remove the rows of a stretch of time from sight, in one entry however many segments they are in.

    The table needs ``segmentLocking``. Fails with :class:`LockDeniedError` when somebody else holds a lock there. A
    retry finds what an earlier attempt did, and removes nothing that came since::

        DeleteTimeOperator(task_id="delete", table="events", start="2013-01-01T09:00Z", end="2013-01-01T10:00Z")

    :param start: Start of the time, ISO 8601, UTC where it names no zone. (templated)
    :param end: End of the time; it is not part of it. (templated)
    :param priority: The priority of the lock that is held meanwhile. (templated)
    """

    template_fields: Sequence[str] = (*AnnouncingOperator.template_fields, "start", "end", "priority")
    ui_color = "#f7e8e8"

    def __init__(self, *, start: str, end: str, priority: int | str = 50, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start = start
        self.end = end
        self.priority = priority

    def execute(self, context: Context) -> dict[str, Any]:
        """Remove that time from sight."""
        interval = Interval(parse_time(str(self.start)), parse_time(str(self.end)))
        with self.open_table() as table:
            ended = table.delete_time(interval, identity=task_identity(context, self.hook), priority=int(self.priority))
        self.log.info(
            "%s %s of table %s. To bring it back: segments revert %s %s",
            "An earlier attempt had removed" if ended.already else "Removed",
            interval,
            self.table,
            self.table,
            ended.entry_id,
        )
        self.announce_change(context, change="delete-time", entry_id=ended.entry_id, rows=0, segments=0, bytes=0)
        return {"table": self.table, "entry_id": ended.entry_id, "already": ended.already}
