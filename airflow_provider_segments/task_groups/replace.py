"""A whole push as one task group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import BaseOperator, TaskGroup, chain

from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.operators.build import BuildSegmentsOperator
from airflow_provider_segments.operators.config import ApplyTableConfigOperator
from airflow_provider_segments.operators.locks import AcquireSegmentLockOperator, ReleaseSegmentLockOperator
from airflow_provider_segments.operators.replace import EndReplaceSegmentsOperator, StartReplaceSegmentsOperator
from airflow_provider_segments.operators.unfinished import PushOutcomeOperator, RevertUnfinishedOperator
from airflow_provider_segments.operators.validate import ValidateSegmentsOperator


def replace_segments(
    *,
    table: str,
    input: str,  # noqa: A002 - the word a DAG author looks for
    input_format: str = "parquet",
    input_options: Mapping[str, str] | str | None = None,
    config: Mapping[str, Any] | str | None = None,
    validate: Mapping[str, Any] | None = None,
    segments_from: Sequence[str] | str | None = None,
    force_cleanup: bool | str = False,
    allow_empty: bool | str = False,
    asset_events: bool = True,
    build: Mapping[str, Any] | None = None,
    lock: Mapping[str, Any] | None = None,
    segments_conn_id: str = SegmentsHook.default_conn_name,
    spark_conn_id: str = "spark_default",
    group_id: str = "replace_segments",
    **group: Any,
) -> TaskGroup:
    """Push an input to a table: start, build, validate, end; and a revert when any of them did not make it.

    ::

        with DAG("flights", schedule="@daily"):
            replace_segments(
                table="flights",
                input="/data/flights.csv",
                input_format="csv",
                input_options={"header": "true"},
                validate={"min_rows": 300_000},
            ) >> publish

    What comes after the group waits for ``end``. ``revert`` and ``outcome`` are teardowns: they run when a task of the
    group fails, and also when somebody marks the DAG run failed while it runs. ``revert`` reverts an entry that is
    still in progress and is skipped otherwise, so a failure after ``end`` reverts nothing. ``outcome`` keeps the run
    failed. ``start`` is a setup: clear any task of the group after a failure, and the push starts over.

    With ``lock``, the push waits for a lock before it starts, keeps its lease alive while it works, and releases it in
    a teardown. When the lock is revoked, nothing of the push becomes visible, and the failure names who did it.

    A run that is ended by ``dagrun_timeout`` runs no teardowns: give such a DAG
    ``on_failure_callback=revert_unfinished_pushes`` (:mod:`airflow_provider_segments.operators.unfinished`). Whatever
    is still left in progress is reverted by the next push with ``force_cleanup``, or by the clean-up after a day.

    :param table: Name of the table. (templated)
    :param input: What to read, see :class:`BuildSegmentsOperator`. (templated)
    :param input_format: Its format. (templated)
    :param input_options: Its options. (templated)
    :param config: Table config to apply first. (templated)
    :param validate: Arguments of :class:`ValidateSegmentsOperator`; without them nothing is validated.
    :param segments_from: What to replace, see :class:`StartReplaceSegmentsOperator`. (templated)
    :param force_cleanup: Revert an unfinished push that stands in the way. (templated)
    :param allow_empty: Whether an input without rows is no error. (templated)
    :param asset_events: Whether ``end`` emits an event of the table's asset.
    :param build: More arguments of :class:`BuildSegmentsOperator`, such as ``engine``, ``conf`` or ``driver_memory``.
    :param lock: Arguments of :class:`AcquireSegmentLockOperator`, ``start`` and ``end`` at least; without them the push
        takes no lock of its own (a table with ``segmentLocking`` locks what it stages).
    :param group: More arguments of Airflow's ``TaskGroup``.
    """
    common: dict[str, Any] = {"table": table, "segments_conn_id": segments_conn_id}
    with TaskGroup(group_id=group_id, **group) as push:
        first = _first(config, common)
        acquire = [AcquireSegmentLockOperator(task_id="acquire", **common, **lock)] if lock else []
        locks: Any = acquire[0].output if acquire else ()
        start = StartReplaceSegmentsOperator(
            task_id="start", segments_from=segments_from, force_cleanup=force_cleanup, locks=locks, **common
        )
        entry_id: Any = start.output
        work: list[BaseOperator] = [
            BuildSegmentsOperator(
                task_id="build",
                entry_id=entry_id,
                input=input,
                input_format=input_format,
                input_options=input_options,
                allow_empty=allow_empty,
                locks=locks,
                conn_id=spark_conn_id,
                **common,
                **(build or {}),
            )
        ]
        if validate is not None:
            checked = ValidateSegmentsOperator(task_id="validate", entry_id=entry_id, locks=locks, **common, **validate)
            work.append(checked)
        end = EndReplaceSegmentsOperator(
            task_id="end", entry_id=entry_id, allow_empty=allow_empty, asset_events=asset_events, **common
        )
        chain(first, *acquire, start, *work, end, *_teardowns([first, *acquire], start, end, common))
    return push


def _first(config: Mapping[str, Any] | str | None, common: Mapping[str, Any]) -> BaseOperator:
    """A setup that succeeds before ``start`` is tried.

    Airflow runs a teardown only when one of its setups has succeeded; with ``start`` as the only one, a start that was
    killed after it made its entry would leave that entry behind.
    """
    if config is None:
        return EmptyOperator(task_id="begin")
    return ApplyTableConfigOperator(task_id="configure", config=config, **common)


def _teardowns(
    before: Sequence[BaseOperator], start: BaseOperator, end: BaseOperator, common: Mapping[str, Any]
) -> list[BaseOperator]:
    """``before`` are the tasks before ``start``: the first one, and perhaps the one that acquires the lock."""
    patience: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=15)}
    revert = RevertUnfinishedOperator(task_id="revert", start_task_id=start.task_id, **common, **patience)
    outcome = PushOutcomeOperator(task_id="outcome", end_task_id=end.task_id, **common)
    revert.as_teardown(setups=[before[0], start])
    outcome.as_teardown(on_failure_fail_dagrun=True)
    if len(before) == 1:
        return [revert, outcome]
    release = ReleaseSegmentLockOperator(task_id="release", **common, **patience)
    release.as_teardown(setups=before)  # the first, too: an acquire that was killed may have left a lock behind
    return [revert, release, outcome]
