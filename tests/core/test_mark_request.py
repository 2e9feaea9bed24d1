"""Marking by hand: leftovers that nothing shows and no live entry holds, and nothing else."""

from __future__ import annotations

import pytest

from airflow_provider_segments.core.deletion import mark_by_hand as request
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import MarkRefusedError
from tests.support.tables import (
    HOUR_MS,
    at_time,
    make_table,
    object_path,
    push,
    queued_keys,
    queued_sweeps,
    registered,
    stage,
    unchanged,
    visible,
)


@pytest.fixture
def table(store: SegmentStore) -> Table:
    return make_table(store)


def refused(table: Table, *names: str, entry_id: str | None = None) -> str:
    """The rule that refuses to mark, after making sure that nothing was written."""
    rules: list[str] = []

    def act() -> None:
        with pytest.raises(MarkRefusedError) as error:
            table.mark_ledgers(None if entry_id else names, entry_id=entry_id)
        rules.append(error.value.rule)

    unchanged(table.store, act)
    return rules[0]


def test_leftovers_of_a_reverted_entry_are_marked_and_counted(store: SegmentStore, table: Table) -> None:
    push(table, ["a", "b"])
    lost = push(table, ["c", "d", "e"])
    table.revert(lost)
    report = table.mark_ledgers(["c", "d"])
    assert (report.segments, report.sent, table.sent) == (2, {"Ledger": 2}, {"Ledger": 2})
    assert registered(table) == {"a", "b", "e"}
    assert {key.split("/")[-1].split(".")[0] for key in queued_keys(store, "t")} == {"c", "d"}
    assert store.deleter().drain().acknowledged == 2
    assert visible(table) == {"a", "b"}


def test_whole_entry_is_marked_and_swept(store: SegmentStore, table: Table) -> None:
    lost = push(table, ["c", "d"])
    table.revert(lost, allow_empty=True)
    stray = object_path(table, f"t/{lost}/stray.parquet")
    stray.write_bytes(b"foreign")
    report = table.mark_ledgers(entry_id=lost)
    assert (report.segments, report.swept, registered(table)) == (2, lost, set())
    assert {one.entry_id for one in queued_sweeps(store)} == {lost}
    store.deleter().drain()
    later = at_time(store, lambda: store.clock.now_ms() + HOUR_MS)
    assert later.deleter().drain().swept >= 1
    assert stray.exists(), "what does not say that it is ours is nobody's to delete"


def test_prefix_of_an_entry_that_is_gone_is_swept(store: SegmentStore, table: Table) -> None:
    nobody = "00000000-0000-4000-8000-000000000000"
    assert table.mark_ledgers(entry_id=nobody).as_dict() == {
        "table": "t",
        "segments": 0,
        "sent": {},
        "swept": nobody,
        "gone": [],
    }
    assert store.deleter().drain().swept == 1


def test_each_segment_that_is_needed_is_refused_by_its_rule_and_none_is_marked(table: Table) -> None:
    first = push(table, ["old"])
    second = push(table, ["new"], ["old"])
    lost = push(table, ["lost"])
    table.revert(lost)
    open_entry = push(table, ["coming"], end=False)
    assert refused(table, "lost", "new") == "visible"
    assert refused(table, "lost", "old") == "in-lineage"
    assert refused(table, "lost", "coming") == "not-reverted"
    assert refused(table, "lost", "never") == "unknown-segment"
    assert refused(table) == "no-segments"
    assert refused(table, entry_id=first) == "completed"
    assert refused(table, entry_id=second) == "completed"
    assert refused(table, entry_id=open_entry) == "in-progress"


def test_announced_name_of_a_push_in_progress_is_held(table: Table) -> None:
    entry_id = push(table, ["x"], announce=True, end=False)
    assert refused(table, "x") == "in-lineage"
    table.revert(entry_id, force=True)
    assert table.mark_ledgers(["x"]).segments == 1


def test_visible_segments_of_an_entry_that_left_the_lineage_are_refused(store: SegmentStore) -> None:
    table = make_table(store, "u", replacedSegmentsRetentionPeriod="0s")
    entry_id = push(table, ["a"])
    while entry_id in table.lineage().entries:
        table.cleanup()
    assert visible(table) == {"a"}
    assert refused(table, "a") == "visible"
    assert refused(table, entry_id=entry_id) == "visible"


def test_retry_counts_what_is_gone_as_done_when_told_to(table: Table) -> None:
    table.revert(push(table, ["c"]), allow_empty=True)
    table.mark_ledgers(["c"])
    assert refused(table, "c") == "unknown-segment"
    again = table.mark_ledgers(["c"], missing_ok=True)
    assert (again.segments, again.gone) == (0, ("c",))


def test_lineage_that_changes_under_the_mark_is_decided_on_anew(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Revert test of the fence: without it the mark lands on a lineage nobody has looked at."""
    lost = push(table, ["c"])
    table.revert(lost, allow_empty=True)
    looked: list[int] = []
    before = request._mark

    def racing(context: object, *rest: object) -> None:
        looked.append(1)
        if len(looked) == 1:
            push(table, 1)
        before(context, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(request, "_mark", racing)
    assert table.mark_ledgers(["c"]).segments == 1
    assert len(looked) == 2
    looked.clear()
    table.revert(push(table, ["e"]))
    monkeypatch.setattr(request, "_fence", lambda *_: [])
    table.mark_ledgers(["e"])
    assert len(looked) == 1, "without the fence the first look decides"


def test_reader_of_an_older_lineage_is_told_before_a_reverted_segment_goes(table: Table) -> None:
    lost = push(table, ["c"])
    shown = table.snapshot()
    table.revert(lost, allow_empty=True)
    table.mark_ledgers(entry_id=lost)
    assert table._context.registry.root().root.removed_at > shown.zxid


def test_exactly_one_of_segments_and_entry_is_asked_for(table: Table) -> None:
    stage(table, table.start().entry_id, ["x"])
    with pytest.raises(ValueError, match="either"):
        table.mark_ledgers()
