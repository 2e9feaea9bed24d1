"""What a push does at its end, however it ended: revert what is unfinished, and say how it went."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XCom
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.operators.base import SegmentsOperator, task_identity
from airflow_provider_segments.operators.locks import AcquireSegmentLockOperator
from airflow_provider_segments.operators.replace import StartReplaceSegmentsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.core.table import Table

log = logging.getLogger(__name__)


class RevertUnfinishedOperator(SegmentsOperator):
    """Revert the entry that another task of this run started, if it is still in progress; otherwise skip.

    Finds the entry by the identity of the task that started it, not by its XCom: a start that was killed after it made
    the entry has left no XCom. Meant as a teardown, which Airflow runs even when the DAG run is marked failed while it
    runs; see :func:`~airflow_provider_segments.task_groups.replace.replace_segments`::

        revert = RevertUnfinishedOperator(task_id="revert", table="flights", start_task_id="start").as_teardown()

    A mapped task that starts entries has one for each of its instances; all of them are reverted, unless this task is
    mapped with it.

    :param start_task_id: The task that started the entry; in a task group with the group's prefix.
    """

    ui_color = "#f7ede8"
    template_fields: Sequence[str] = (*SegmentsOperator.template_fields, "start_task_id")

    def __init__(self, *, start_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_task_id = start_task_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Revert, or skip."""
        from airflow_provider_segments.exceptions import TableNotFoundError

        with self.open_table() as table:
            try:
                running = table.running(task_identity(context, self.hook, self.start_task_id))
            except TableNotFoundError as error:  # the start was refused for the same reason
                raise AirflowSkipException(str(error)) from error
            if not running:
                raise AirflowSkipException(f"{self.start_task_id} has no entry of table {self.table!r} in progress")
            reverted = [entry_id for entry_id in running if self._abort(context, table, entry_id)]
        if not reverted:
            raise AirflowSkipException(f"every entry of table {self.table!r} that {self.start_task_id} made has ended")
        return {"table": self.table, "entry_ids": reverted}

    def _abort(self, context: Context, table: Table, entry_id: str) -> bool:
        """Revert the entry, unless an end was faster: what is completed stays."""
        from airflow_provider_segments.exceptions import RevertRefusedError

        try:
            table.abort(entry_id, identity=task_identity(context, self.hook))
        except RevertRefusedError as refused:
            self.log.info("%s", refused)
            return False
        self.log.warning(
            "The push did not end: entry %s of table %s is reverted, readers have seen nothing of it. "
            "Clear the failed task to push again.",
            entry_id,
            self.table,
        )
        return True


class PushOutcomeOperator(SegmentsOperator):
    """Fail unless the task ``end_task_id`` succeeded. Meant as a teardown that decides the state of the DAG run.

    Airflow works out a run's state from its last tasks. When a run is marked failed by hand while a teardown is
    pending, those last tasks are *skipped*, which counts as success; this task keeps such a run failed.

    :param end_task_id: The task that makes the push visible; in a task group with the group's prefix.
    """

    template_fields: Sequence[str] = (*SegmentsOperator.template_fields, "end_task_id")

    def __init__(self, *, end_task_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.end_task_id = end_task_id

    def execute(self, context: Context) -> None:
        """Look at the state of the task."""
        ti = context["ti"]
        mapped = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None
        states = ti.get_task_states(
            dag_id=ti.dag_id, map_index=mapped, task_ids=[self.end_task_id], run_ids=[ti.run_id]
        )
        found = {str(state) for one in states.values() for state in one.values()}
        if found != {"success"}:
            raise AirflowFailException(
                f"the push to table {self.table!r} did not become visible: {self.end_task_id} is "
                f"{', '.join(sorted(found)) or 'missing'}. The tasks before it say why."
            )


def revert_unfinished_pushes(context: Context) -> None:
    """Revert every push of a DAG run that did not end, and release the run's locks: an ``on_failure_callback`` for a
    DAG with a ``dagrun_timeout``.

    When a run exceeds its time-out, Airflow skips all its tasks, teardowns among them; this callback is what it still
    runs, in the DAG processor::

        with DAG("flights", dagrun_timeout=timedelta(hours=1), on_failure_callback=revert_unfinished_pushes):
            replace_segments(...)
    """
    for entry in _pushed(context, StartReplaceSegmentsOperator, "entry"):
        _revert_if_unfinished(entry)
    for lock in _pushed(context, AcquireSegmentLockOperator, "lock"):
        _release_locks(lock)


def _pushed(context: Context, operator: type[BaseOperator], key: str) -> Iterator[Mapping[str, Any]]:
    """What the run's tasks of that operator pushed to XCom, every mapped instance of theirs included."""
    dag = context["dag"]
    for task in dag.tasks:
        made_by = getattr(task, "operator_class", type(task))  # a mapped task is not an instance of its operator
        if isinstance(made_by, type) and issubclass(made_by, operator):
            yield from XCom.get_all(key=key, dag_id=dag.dag_id, task_id=task.task_id, run_id=context["run_id"]) or ()


def _release_locks(lock: Mapping[str, Any]) -> None:
    with SegmentsHook(lock["segments_conn_id"]).get_conn() as store:
        released = store.table(lock["table"]).locks.release_group(lock["group"])
    log.warning("The DAG run failed: %d locks of %s on table %s are released.", released, lock["group"], lock["table"])


def _revert_if_unfinished(entry: Mapping[str, Any]) -> None:
    from airflow_provider_segments.exceptions import EntryNotFoundError, RevertRefusedError

    with SegmentsHook(entry["segments_conn_id"]).get_conn() as store:
        try:
            store.table(entry["table"]).abort(entry["entry_id"])
        except (RevertRefusedError, EntryNotFoundError) as refused:
            log.info("Nothing to revert: %s", refused)
        else:
            log.warning("The DAG run failed: entry %s of table %s is reverted.", entry["entry_id"], entry["table"])
