"""Each operator's ``execute``, against the real ZooKeeper, without a scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, AssetAlias
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_segments.assets.segments import EVENTS_ALIAS, segments_asset
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import InvalidConfigError, RevertRefusedError
from airflow_provider_segments.operators.build import BuildSegmentsOperator
from airflow_provider_segments.operators.config import ApplyTableConfigOperator
from airflow_provider_segments.operators.replace import (
    EndReplaceSegmentsOperator,
    RevertReplaceSegmentsOperator,
    StartReplaceSegmentsOperator,
)
from airflow_provider_segments.operators.unfinished import RevertUnfinishedOperator
from airflow_provider_segments.operators.validate import ValidateSegmentsOperator
from tests.airflow.helpers import TaskState, context, make_table, push_rows, stage_rows


def events(ran: dict[str, Any], alias: str = EVENTS_ALIAS) -> list[Any]:
    """Asset events an operator has asked for."""
    return list(ran["outlet_events"][AssetAlias(name=alias, group="segments")].asset_alias_events)


def test_config_is_created_then_unchanged_then_updated(store: SegmentStore, table_name: str) -> None:
    def apply(config: Any) -> str:
        return ApplyTableConfigOperator(task_id="c", table=table_name, config=config).execute(context())

    assert apply({}) == "created"
    assert apply("{}") == "unchanged"
    assert apply({"segmentBuildConfig": {"targetRowsPerSegment": 7}}) == "updated"
    assert store.table(table_name).config().target_rows == 7


@pytest.mark.parametrize("config", [{"tableName": "another"}, "not json", "[]", {"segmentBuildConfig": {"typo": 1}}])
def test_config_that_cannot_be_used_is_refused(connection: Any, table_name: str, config: Any) -> None:
    with pytest.raises(InvalidConfigError):
        ApplyTableConfigOperator(task_id="c", table=table_name, config=config).execute(context())


def test_retried_start_finds_the_entry_of_the_attempt_before(store: SegmentStore, table_name: str) -> None:
    table = make_table(store, table_name)
    start = StartReplaceSegmentsOperator(task_id="start", table=table_name)
    first, again = context("start"), context("start")
    entry_id = start.execute(first)
    assert start.execute(again) == entry_id
    assert (first["xcoms"]["entry"]["resumed"], again["xcoms"]["entry"]["resumed"]) == (False, True)
    assert list(table.lineage().entries) == [entry_id]


def test_another_run_makes_another_entry(store: SegmentStore, table_name: str) -> None:
    make_table(store, table_name, "APPEND")
    start = StartReplaceSegmentsOperator(task_id="start", table=table_name)
    assert start.execute(context("start", "one")) != start.execute(context("start", "two"))


def test_start_killed_while_it_runs_leaves_nothing_in_progress(store: SegmentStore, table_name: str) -> None:
    """The task that reverts unfinished pushes may have looked before the entry was there."""
    table = make_table(store, table_name)
    start = StartReplaceSegmentsOperator(task_id="start", table=table_name)
    start.on_kill()
    with pytest.raises(AirflowFailException, match="reverted"):
        start.execute(context("start"))
    assert [entry.state.value for entry in table.lineage()] == ["REVERTED"]


def test_push_then_rollback_by_operators(store: SegmentStore, table_name: str, tmp_path: Path) -> None:
    table = make_table(store, table_name)
    push_rows(table, tmp_path, {"a": [1, 2]})
    entry_id = StartReplaceSegmentsOperator(task_id="start", table=table_name).execute(context("start"))
    stage_rows(table, entry_id, tmp_path, {"a": [3]})
    ran = context("end")
    end = EndReplaceSegmentsOperator(task_id="end", table=table_name, entry_id=entry_id)
    result = end.execute(ran)
    assert (result["rows"], result["segments"], result["replaced"], result["already"]) == (1, 1, 1, False)
    assert result["switch_ms"] > 0
    assert end.execute(context("end"))["already"] is True
    [event] = events(ran)
    assert event.dest_asset_key.uri == segments_asset(table_name, f"airflow_{table_name}").uri
    assert event.extra["entry_id"] == entry_id
    revert = RevertReplaceSegmentsOperator(task_id="r", table=table_name, entry_id="latest")
    undone = revert.execute(ran := context("r"))
    assert (undone["entry_id"], undone["reappeared"], undone["hidden"]) == (entry_id, 1, 1)
    assert events(ran)[0].extra["change"] == "revert"
    assert table.snapshot().rows == 2


def test_end_that_was_cleared_alone_says_what_to_clear_instead(
    store: SegmentStore, table_name: str, tmp_path: Path
) -> None:
    """Airflow clears the setups of a cleared task with it, so ``start`` makes another entry, and nothing builds it."""
    table = make_table(store, table_name)
    with DAG("cleared"):
        start = StartReplaceSegmentsOperator(task_id="start", table=table_name)
        build = BuildSegmentsOperator(task_id="build", table=table_name, entry_id="", input="")
        end = EndReplaceSegmentsOperator(task_id="end", table=table_name, entry_id="", allow_empty=True)
        start >> build >> end
    end.entry_id = start.execute(context("start"))
    stage_rows(table, end.entry_id, tmp_path, {"a": [3]})
    end.execute(context("end"))
    end.entry_id = start.execute(context("start"))
    with pytest.raises(AirflowFailException, match="To push again, clear build with what is downstream"):
        end.execute(context("end"))
    assert table.snapshot().rows == 1


def test_dry_run_changes_nothing_and_emits_nothing(store: SegmentStore, table_name: str, tmp_path: Path) -> None:
    table = make_table(store, table_name)
    push_rows(table, tmp_path, {"a": [1]})
    push_rows(table, tmp_path, {"a": [2, 3]})
    before = table.lineage()
    dry = RevertReplaceSegmentsOperator(task_id="r", table=table_name, entry_id="latest", dry_run="True")
    result = dry.execute(ran := context("r"))
    assert (result["dry_run"], result["reappeared"], result["hidden"]) == (True, 1, 1)
    assert table.lineage() == before
    assert events(ran) == []


def test_dry_run_refuses_in_the_words_of_the_revert(store: SegmentStore, table_name: str, tmp_path: Path) -> None:
    table = make_table(store, table_name)
    first = push_rows(table, tmp_path, {"a": [1]})
    push_rows(table, tmp_path, {"a": [2]})
    words = []
    for dry in (True, False):
        operator = RevertReplaceSegmentsOperator(task_id="r", table=table_name, entry_id=first, dry_run=dry)
        with pytest.raises(RevertRefusedError, match="built-upon") as refused:
            operator.execute(context("r"))
        words.append(str(refused.value))
    assert words[0] == words[1]


def test_retried_revert_of_latest_reverts_one_entry_only(
    store: SegmentStore, table_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt reverts and dies before it reports. A retry that asked again for the latest entry would find
    the one before, and roll back twice."""
    table = make_table(store, table_name)
    for rows in ([1], [1, 2], [1, 2, 3]):
        push_rows(table, tmp_path, {"a": rows})
    kept = TaskState()
    revert = RevertReplaceSegmentsOperator(task_id="r", table=table_name, entry_id="latest")
    with monkeypatch.context() as dying:
        dying.setattr(revert, "announce", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            revert.execute(context("r", state=kept))
    assert table.snapshot().rows == 2
    assert revert.execute(context("r", state=kept))["already"] is True
    assert table.snapshot().rows == 2
    assert not kept, "a task that is cleared after it succeeded decides anew"


def test_unfinished_push_is_reverted_by_the_identity_of_its_start(store: SegmentStore, table_name: str) -> None:
    table = make_table(store, table_name)
    entry_id = StartReplaceSegmentsOperator(task_id="start", table=table_name).execute(context("start"))
    revert = RevertUnfinishedOperator(task_id="revert", table=table_name, start_task_id="start")
    assert revert.execute(context("revert"))["entry_ids"] == [entry_id]
    assert table.lineage().entries[entry_id].state.value == "REVERTED"
    with pytest.raises(AirflowSkipException):
        revert.execute(context("revert"))


def test_completed_push_is_left_alone_and_so_is_another_runs(
    store: SegmentStore, table_name: str, tmp_path: Path
) -> None:
    table = make_table(store, table_name, "APPEND")
    push_rows(table, tmp_path, {"a": [1]}, identity="tests/dag/run/start")
    StartReplaceSegmentsOperator(task_id="start", table=table_name).execute(context("start", "another"))
    before = table.lineage()
    with pytest.raises(AirflowSkipException):
        RevertUnfinishedOperator(task_id="revert", table=table_name, start_task_id="start").execute(context("revert"))
    assert table.lineage() == before


def validated(table_name: str, entry_id: str, **checks: Any) -> Any:
    return ValidateSegmentsOperator(task_id="v", table=table_name, entry_id=entry_id, **checks).execute(context("v"))


@pytest.fixture
def staged(store: SegmentStore, table_name: str, tmp_path: Path) -> str:
    """An entry with four staged rows of 2013-01-01 to 2013-01-04."""
    table = make_table(store, table_name)
    entry_id = str(table.start().entry_id)
    rows: dict[str, list[Any]] = {"a": [1, 2, 3, 4], "b": ["x", None, "y", None], "the price": [0.5, 1.5, 2.5, None]}
    stage_rows(table, entry_id, tmp_path, rows, times=(1_356_998_400_000, 1_357_257_600_000))
    return entry_id


def test_staged_segments_that_are_as_expected_pass(table_name: str, staged: str) -> None:
    checks = {
        "min_rows": "4",
        "max_rows": 4,
        "columns": ["a", "b"],
        "max_null_rates": {"b": 0.5, "the price": 0.25},
        "min_time": "2013-01-01",
        "max_time": "2013-01-04T00:00:00Z",
        "predicates": ["a > 0", 'b IS NULL OR length(b) = 1 -- a comment'],
        "queries": [
            {"sql": "SELECT count(DISTINCT b) FROM segments", "expect": 2},
            {"sql": 'SELECT sum("the price")::DECIMAL(9,2) FROM segments', "expect": "4.50"},
            {"sql": "SELECT b, count(*) FROM segments WHERE b > '' GROUP BY b ORDER BY b", "expect": [["x", 1], ["y", 1]]},  # noqa: E501
        ],
    }  # fmt: skip
    assert validated(table_name, staged, **checks)["rows"] == 4


def test_each_check_is_told_whether_the_push_passes_or_not(table_name: str, staged: str) -> None:
    """The page shows them. A task that fails keeps what it has pushed before."""
    validate = ValidateSegmentsOperator(
        task_id="v", table=table_name, entry_id=staged, min_rows=4, max_rows=3, predicates=["a > 0" + " " * 600]
    )
    given = context("v")
    with pytest.raises(AirflowFailException):
        validate.execute(given)
    told = given["xcoms"]["validation"]
    named = {"table": table_name, "segments_conn_id": "segments_default", "entry_id": staged}
    assert told | named | {"rows": 4, "segments": 1} == told
    outcomes = {(one["expected"], one["found"]): one["ok"] for one in told["findings"]}
    assert sorted(outcomes.values()) == [False, True, True, True]
    assert all(len(one["check"]) <= 500 for one in told["findings"])
    json.dumps(told)


def test_every_failed_check_is_listed_with_expected_and_found(table_name: str, staged: str) -> None:
    with pytest.raises(AirflowFailException) as failed:
        validated(
            table_name,
            staged,
            min_rows=5,
            max_rows=3,
            columns=["a", "absent"],
            max_null_rates={"b": 0.1, "gone": 0},
            min_time="2013-01-02",
            max_time="2013-01-03",
            predicates=["b = 'x'", "a >"],
            queries=[{"sql": "SELECT max(a) FROM segments", "expect": 3}, {"sql": "SELECT nope", "expect": 1}],
        )
    says = str(failed.value)
    assert "11 of 13 checks" in says
    for part in (
        "rows: expected at least 5, found 4",
        "rows: expected at most 3, found 4",
        "column absent: expected present, found only a, b, the price",
        "null rate of b: expected at most 0.1, found 0.5 (2 of 4 rows)",
        "null rate of gone: expected at most 0, found no such column",
        "earliest time: expected 2013-01-02T00:00:00Z or later, found 2013-01-01T00:00:00Z",
        "latest time: expected 2013-01-03T00:00:00Z or earlier, found 2013-01-04T00:00:00Z",
        "rows where not (b = 'x'): expected 0, found 3",
        "SELECT max(a) FROM segments: expected 3, found 4",
        "SQL failed",
        "readers have seen none of them",
    ):
        assert part in says


def test_sql_reads_nothing_but_the_staged_segments(table_name: str, staged: str) -> None:
    with pytest.raises(AirflowFailException, match="file system operations are disabled"):
        validated(table_name, staged, queries=[{"sql": "SELECT count(*) FROM read_csv('/etc/passwd')", "expect": 1}])


def test_nothing_staged_fails_the_row_bound_and_not_the_program(store: SegmentStore, table_name: str) -> None:
    entry_id = str(make_table(store, table_name).start().entry_id)
    with pytest.raises(AirflowFailException, match="at least 1, found 0"):
        validated(table_name, entry_id, min_rows=1, max_null_rates={"a": 0}, predicates=["a > 0"])


def test_validation_looks_at_the_staged_segments_not_at_the_visible_ones(
    store: SegmentStore, table_name: str, tmp_path: Path
) -> None:
    table = make_table(store, table_name)
    push_rows(table, tmp_path, {"a": [1, 2, 3]})
    entry_id = str(table.start().entry_id)
    stage_rows(table, entry_id, tmp_path, {"a": [1]})
    assert validated(table_name, entry_id, min_rows=1, max_rows=1)["rows"] == 1
