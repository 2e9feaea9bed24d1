"""Compaction, as a Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.operators.base import Announcer, task_identity, truth
from airflow_provider_segments.operators.job import SegmentsJobOperator, as_options

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.core.lineage.entries import LineageEntry
    from airflow_provider_segments.core.table import Table


class CompactSegmentsOperator(Announcer, SegmentsJobOperator):
    """Merge a table's small segments and split large ones with Spark, each time chunk as a replacement of its own.

    Appends go on meanwhile. A chunk that fails is left as it was and fails the task at its end, after all the others
    were published; a retry takes on what is left. Each chunk can be rolled back like any push. A job that failed or was
    killed leaves no locks behind; those of a worker that died go when their lease ends. What was compacted is an event
    of the table's asset: the rows are the same, in other segments::

        CompactSegmentsOperator(task_id="compact", table="events", skip_offset="1d")

    :param policy: ``newest-first`` or ``most-fragmented-first``. (templated)
    :param skip_offset: Leave alone what is this close to the end of the latest segment, such as ``1d``. (templated)
    :param granularity: Granularity of the new segments; default: the table's. (templated)
    :param target_rows: Rows of one new segment; default: the table's. (templated)
    :param max_groups: Most time chunks of one run; default: all. (templated)
    :param deduplicate: Key columns, joined by commas: of the rows of one key, the last is kept. (templated)
    :param dry_run: Log what would be compacted, and why. (templated)
    """

    template_fields: Sequence[str] = (
        *SegmentsJobOperator.template_fields,
        "policy",
        "skip_offset",
        "granularity",
        "target_rows",
        "max_groups",
        "deduplicate",
        "preview",
    )
    app = "compact_segments"

    def __init__(
        self,
        *,
        policy: str = "newest-first",
        skip_offset: str = "0s",
        granularity: str | None = None,
        target_rows: int | str | None = None,
        max_groups: int | str | None = None,
        deduplicate: str | None = None,
        dry_run: bool | str = False,
        name: str = "segments-compact",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.policy = policy
        self.skip_offset = skip_offset
        self.granularity = granularity
        self.target_rows = target_rows
        self.max_groups = max_groups
        self.deduplicate = deduplicate
        self.preview = dry_run  # BaseOperator has a method called dry_run
        self._identity: str | None = None

    def execute(self, context: Context) -> Any:
        """Submit the job and wait for its end."""
        self._identity = task_identity(context, self.segments_hook)
        try:
            done = super().execute(context)
        except BaseException:
            self._release_locks()
            raise
        self._announce_compacted(context, self._identity)
        return done

    def _announce_compacted(self, context: Context, identity: str) -> None:
        """Announce what this task has compacted, in any of its attempts; an attempt that failed announced nothing."""
        with self.segments_hook.get_conn() as store:
            entries = completed_by(store.table(self.table), f"{identity}/")
        if entries:
            self.announce(
                context,
                table=self.table,
                change="compact",
                entry_ids=[entry.entry_id for entry in entries],
                segments=sum(len(entry.segments_to) for entry in entries),
                replaced=sum(len(entry.segments_from) for entry in entries),
            )

    def on_kill(self) -> None:
        """End the job, and then release the locks that its driver held: it can release nothing any more."""
        super().on_kill()
        self._release_locks()

    def job_arguments(self, context: Context) -> list[str]:
        """The work's name, which every retry shares, and the settings."""
        settings = {
            "--identity": task_identity(context, self.segments_hook),
            "--policy": self.policy,
            "--skip-offset": self.skip_offset,
            "--granularity": self.granularity or None,
            "--target-rows": str(self.target_rows) if self.target_rows else None,
            "--max-groups": str(self.max_groups) if self.max_groups else None,
            "--deduplicate": self.deduplicate or None,
        }
        return [*as_options(settings), *(["--dry-run"] if truth(self.preview, "dry_run") else [])]

    def _release_locks(self) -> None:
        """The driver takes its locks as the group ``--identity``. Should it live on somewhere, the fences keep it from
        publishing."""
        if self._identity is None:
            return
        try:
            with self.lock_box() as box:
                released = box.release_group(self._identity)
        except Exception as error:
            self.log.warning("The locks of the job were not released, and go when their leases end: %s", error)
        else:
            if released:
                self.log.info("Released %d locks that the job had left behind.", released)


def completed_by(table: Table, work: str) -> list[LineageEntry]:
    """The COMPLETED compactions of the table whose identity begins with ``work``."""
    from airflow_provider_segments.core.lineage.entries import EntryState

    lineage = table.lineage()
    completed = [entry for entry in lineage.in_state(EntryState.COMPLETED) if entry.entry_id in lineage.rewrites]
    guards = table.context.records.guards([entry.entry_id for entry in completed])
    ours = {entry_id for entry_id, stored in guards.items() if (stored.guard.identity or "").startswith(work)}
    return [entry for entry in completed if entry.entry_id in ours]
