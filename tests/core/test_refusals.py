"""Input that must be refused: each with its rule or error, a message that says what to do, and nothing changed."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.replacement.start import AllVisible
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import SetData, ZooKeeperSession, znrecord
from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    EndRefusedError,
    EntryNotFoundError,
    InvalidConfigError,
    InvalidNameError,
    MetadataUnavailableError,
    RecordTooLargeError,
    RefusedError,
    SegmentsError,
    TableNotFoundError,
)
from tests.support.sessions import settings
from tests.support.tables import (
    HOUR_MS,
    HandClock,
    build,
    contents,
    make_table,
    object_path,
    on_clock,
    on_session,
    push,
    unchanged,
    visible,
)
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture
def table(store: SegmentStore) -> Table:
    """An APPEND table that shows a and b."""
    made = make_table(store)
    push(made, ["a", "b"])
    return made


def refuse(
    table: Table, kind: type[SegmentsError], message: str, act: Callable[[], object], *, rule: str | None = None
) -> None:
    """``act`` is refused that way, and not one byte of ZooKeeper has changed."""

    def attempt() -> None:
        with pytest.raises(kind, match=message) as caught:
            act()
        if rule is not None:
            assert isinstance(caught.value, RefusedError)
            assert (caught.value.rule, caught.value.table) == (rule, table.name)
            assert f"[{rule}]" in str(caught.value)

    unchanged(table.store, attempt)


@pytest.mark.parametrize(
    "act",
    [
        lambda table: table.start(),
        lambda table: table.config(),
        lambda table: table.lineage(),
        lambda table: table.cleanup(),
        lambda table: table.snapshot(),
    ],
    ids=["start", "config", "lineage", "cleanup", "snapshot"],
)
def test_an_unknown_table_is_refused_with_the_tables_there_are(table: Table, act: Callable[[Table], object]) -> None:
    refuse(
        table, TableNotFoundError, "table 'none'.*apply (one|its config) first", lambda: act(table.store.table("none"))
    )


@pytest.mark.parametrize("act", [Table.open_stage, Table.end, Table.revert, Table.preview_revert, Table.staged])
def test_an_unknown_entry_is_refused(table: Table, act: Callable[[Table, str], object]) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    refuse(table, EntryNotFoundError, f"no lineage entry {unknown}", lambda: act(table, unknown))


BAD_NAMES = [
    ("a,b", "is not allowed"),
    ("a/b", "is not allowed"),
    ("", "must not be empty"),
    ("x" * 300, "has 300 characters; at most (128|200)"),
    (".", "is not allowed"),
    ("..", "is not allowed"),
    ("a b", "is not allowed"),
    ("a\n", "is not allowed"),
    ("-x", "is not allowed"),
    ("a\0", "is not allowed"),
    ("ä", "is not allowed"),
]


@pytest.mark.parametrize(("name", "problem"), BAD_NAMES, ids=[repr(name)[:12] for name, _ in BAD_NAMES])
def test_a_name_that_could_not_be_stored_is_refused_by_every_step(table: Table, name: str, problem: str) -> None:
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    bad = StagedSegment("2013-01-01", SegmentRecord(name, "f.parquet", 1, 1, 1))
    for act in (
        lambda: table.start([name]),
        lambda: table.start((), ["good", name]),
        lambda: table.stage(ticket, [bad]),
        lambda: table.end(entry_id, [name]),
        lambda: table.store.table(name),
    ):
        refuse(table, InvalidNameError, problem, act)


@pytest.mark.parametrize("file", ["../up", "/etc/passwd", "a//b", "", "a/../b", ".hidden"])
def test_an_object_name_that_leaves_the_entrys_prefix_is_refused(table: Table, file: str) -> None:
    ticket = table.open_stage(table.start().entry_id)
    segment = StagedSegment("2013-01-01", SegmentRecord("s", file, 1, 1, 1))
    refuse(table, InvalidNameError, "is not allowed", lambda: table.stage(ticket, [segment]))


@pytest.mark.parametrize("chunk", ["", "2013-13", "2013-02-30", "2013-W60", "yesterday", "all", "../x"])
def test_a_chunk_that_is_no_time_is_refused(table: Table, chunk: str) -> None:
    ticket = table.open_stage(table.start().entry_id)
    segment = StagedSegment(chunk, SegmentRecord("s", "s.parquet", 1, 1, 1))
    refuse(table, InvalidNameError, "is not the name of a time chunk", lambda: table.stage(ticket, [segment]))


def test_a_stager_with_a_dot_is_refused(table: Table) -> None:
    entry_id = table.start().entry_id
    refuse(table, InvalidNameError, "must not contain a dot", lambda: table.open_stage(entry_id, "a.b"))


@pytest.mark.parametrize("lists", [(["a", "a"], []), ([], ["x", "x"])])
def test_duplicates_are_refused(table: Table, lists: tuple[list[str], list[str]]) -> None:
    refuse(table, InvalidNameError, "is given twice in one list", lambda: table.start(*lists))


def test_duplicates_are_refused_by_stage_and_end(table: Table) -> None:
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    twice = build(table, ticket, ["x"]) * 2
    refuse(table, InvalidNameError, "twice", lambda: table.stage(ticket, twice))
    one_file = [twice[0], StagedSegment("ALL", SegmentRecord("y", twice[0].record.file, 1, 1, 1))]
    refuse(table, InvalidNameError, "name the same file", lambda: table.stage(ticket, one_file))
    refuse(table, InvalidNameError, "twice", lambda: table.end(entry_id, ["x", "x"]))


def test_from_that_is_not_visible_is_refused(table: Table) -> None:
    refuse(
        table,
        RefusedError,
        "'gone' of 'from' is not visible",
        lambda: table.start(["a", "gone"]),
        rule="from-not-visible",
    )


def test_to_that_is_visible_is_refused(table: Table) -> None:
    refuse(
        table,
        RefusedError,
        "'b' of 'to' is already visible in the table .* Use new names",
        lambda: table.start(["a"], ["b"]),
        rule="to-visible",
    )


def test_a_name_that_ping_pongs_is_refused(table: Table) -> None:
    """A to B, then B to A: at start, and at stage for a push that announced nothing. Also when the entry that once
    brought A has long been dropped."""
    hand = HandClock(table.store.clock.now_ms() + 5 * HOUR_MS)
    table = on_clock(table.store, hand.clock()).table("t")
    assert len(table.cleanup().dropped) == 1
    entry_id = push(table, ["c"], ["a"])
    refuse(
        table,
        RefusedError,
        f"'a' is in 'from' of the COMPLETED entry {entry_id}",
        lambda: table.start(["c"], ["a"]),
        rule="to-was-replaced",
    )
    ticket = table.open_stage(table.start(["c"]).entry_id)
    segments = build(table, ticket, ["a"])

    def attempt() -> None:
        with pytest.raises(RefusedError) as caught:
            table.stage(ticket, segments)
        assert caught.value.rule == "to-was-replaced"

    before = visible(table)
    attempt()
    assert visible(table) == before
    assert "a" not in {
        record.name for shard in table._context.registry.of_entry(ticket.entry_id) for record in shard.records
    }


def test_a_visible_name_cannot_be_staged(table: Table) -> None:
    ticket = table.open_stage(table.start().entry_id)
    with pytest.raises(RefusedError) as caught:
        table.stage(ticket, build(table, ticket, ["b"]))
    assert caught.value.rule == "to-conflict"
    assert not table._context.registry.of_entry(ticket.entry_id)


def test_a_name_that_was_not_announced_cannot_be_staged(table: Table) -> None:
    ticket = table.open_stage(table.start((), ["c"]).entry_id)
    with pytest.raises(RefusedError) as caught:
        table.stage(ticket, build(table, ticket, ["c", "d"]))
    assert caught.value.rule == "not-announced"


def test_end_of_a_reverted_entry_is_refused(table: Table) -> None:
    entry_id = push(table)
    table.revert(entry_id)
    refuse(
        table,
        RefusedError,
        f"entry {entry_id}: end refused.*REVERTED.*Start a new",
        lambda: table.end(entry_id),
        rule="reverted",
    )


@pytest.mark.parametrize(("harm", "rule"), [("missing", "object-missing"), ("truncated", "object-size")])
def test_end_with_a_missing_or_truncated_object_is_refused(table: Table, harm: str, rule: str) -> None:
    """The entry stays sealed in its guard; lineage and registry are as they were, and another build can go on."""
    entry_id = push(table, ["x", "y"], end=False)
    path = object_path(table, table.staged(entry_id).files[0])
    whole = path.read_bytes()
    path.unlink() if harm == "missing" else path.write_bytes(b"")
    guard = f"/{table.store.paths.cluster}/ENTRIES/t/{entry_id}"
    before = contents(table.store)
    with pytest.raises(EndRefusedError, match=r"x.*Run the build again") as caught:
        table.end(entry_id)
    assert caught.value.rule == rule
    after = contents(table.store)
    assert before.pop(guard).data != after.pop(guard).data
    assert before == after
    path.write_bytes(whole)
    table.end(entry_id)
    assert visible(table) == {"a", "b", "x", "y"}


@pytest.mark.parametrize("later", ["IN_PROGRESS", "COMPLETED"])
def test_revert_under_a_live_later_entry_is_refused(table: Table, later: str) -> None:
    first = push(table, ["c"], ["a"])
    second = push(table, ["d"], ["c"], end=later == "COMPLETED")
    refuse(
        table,
        RefusedError,
        f"the {later} entry {second} replaces 'c' of its segments .* Revert that entry first",
        lambda: table.revert(first),
        rule="built-upon",
    )
    refuse(table, RefusedError, "built-upon", lambda: table.preview_revert(first, force=True), rule="built-upon")


CORRUPT = {
    "not JSON": lambda data: b"127.0.0.1",
    "empty": lambda data: b"",
    "null": lambda data: b"null",
    "cut gzip": lambda data: gzip.compress(data)[:-9],
    "another table's": lambda data: data.replace(b'"t"', b'"u"'),
    "unknown state": lambda data: data.replace(b"COMPLETED", b"PAUSED"),
    "three elements": lambda data: data.replace(b', "COMPLETED"', b""),
}


@pytest.mark.parametrize("harm", CORRUPT)
def test_a_corrupted_lineage_stops_every_step_and_is_never_overwritten(table: Table, harm: str) -> None:
    """Pinot reads it as "no lineage": every hidden segment becomes visible, and the next start erases the record."""
    entry_id = push(table, ["c"], end=False)
    path = table.store.paths.lineage("t")
    node = table.store.session.get(path)
    assert node is not None
    table.store.session.commit([SetData(path, CORRUPT[harm](node.data), node.version)])
    for act in (
        lambda: table.start(["a"]),
        lambda: table.start(),
        lambda: table.end(entry_id),
        lambda: table.revert(entry_id, force=True),
        table.cleanup,
        table.snapshot,
        table.lineage,
    ):
        refuse(table, CorruptRecordError, path, act)


@pytest.mark.parametrize("where", ["guard", "shard", "root", "config"])
def test_a_corrupted_record_of_ours_is_an_error_that_names_it(table: Table, where: str) -> None:
    entry_id = push(table, ["c"], ["a"], end=False)
    paths = table.store.paths
    chunk = f"{paths.registry('t')}/2013-01-01"
    path = {
        "guard": paths.guard("t", entry_id),
        "shard": next(f"{chunk}/{name}" for name in table.store.session.children(chunk) if entry_id not in name),
        "root": paths.registry("t"),
        "config": paths.config("t"),
    }[where]
    node = table.store.session.get(path)
    assert node is not None
    table.store.session.commit([SetData(path, b"{", node.version)])
    act = {"guard": lambda: table.end(entry_id), "config": table.config}.get(where, table.snapshot)
    refuse(table, CorruptRecordError, path, act)


def test_a_lineage_that_would_be_too_large_is_refused_and_nothing_is_written(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(znrecord, "WRITE_LIMIT", 600)
    names = [f"{number * 2654435761 % 2**32:x}" for number in range(150)]
    refuse(table, RecordTooLargeError, r"record 't' has [\d,]+ bytes, [\d,]+ with gzip", lambda: table.start((), names))


def test_a_segment_record_that_no_znode_could_hold_is_refused(table: Table) -> None:
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    segment = StagedSegment("ALL", SegmentRecord("s", "s.parquet", 1, 1, 1, columns={"c": ["x" * 1_100_000, "y", 0]}))
    with pytest.raises(RecordTooLargeError, match=r"its largest record is .*SEGMENTS/t/ALL"):
        table.stage(ticket, [segment])
    assert not table._context.registry.of_entry(entry_id)


def test_no_zookeeper_is_an_error_of_every_step_and_nothing_changes(table: Table, zk_hosts: str) -> None:
    entry_id = push(table, ["c"], end=False)
    fast = {"session_timeout": 1.0, "operation_timeout": 0.1}
    with TcpProxy(zk_hosts) as proxy, ZooKeeperSession.connect(settings(proxy.hosts, **fast)) as session:
        proxy.refuse()
        cut_off = on_session(table.store, session).table("t")
        for act in (cut_off.start, cut_off.snapshot, cut_off.cleanup, lambda: cut_off.end(entry_id)):
            refuse(table, MetadataUnavailableError, "did not answer a read", act)


def test_wrong_credentials_are_an_error_of_every_step_and_nothing_changes(
    zk_hosts: str, cluster: str, storage_uri: str
) -> None:
    mine = settings(zk_hosts, username="ann", password="right")
    with SegmentStore.connect(zookeeper=mine, cluster=cluster, storage_uri=storage_uri) as store:
        table = make_table(store)
        entry_id = push(table, ["a"], end=False)
        other = settings(zk_hosts, username="eve", password="guess")
        with SegmentStore.connect(zookeeper=other, cluster=cluster, storage_uri=storage_uri) as wrong:
            for act in (
                wrong.table("t").start,
                lambda: wrong.table("t").end(entry_id),
                wrong.table("t").snapshot,
                wrong.tables,
            ):
                refuse(table, MetadataUnavailableError, "denied access", act)


def config(**changes: object) -> dict[str, object]:
    return {"tableName": "t", "segmentsConfig": {"timeColumnName": "ts"}, **changes}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            config(segmentBuildConfig={"segmentGranularity": "FORTNIGHT"}),
            "granularity 'FORTNIGHT' is unknown; use one of HOUR",
        ),
        (config(segmentBuildConfig={"segmentGranularity": 5}), "granularity 5 is unknown"),
        (
            config(segmentsConfig={}, segmentBuildConfig={"segmentGranularity": "DAY"}),
            "DAY needs segmentsConfig.timeColumnName",
        ),
        (config(segmentBuildConfig={"granularity": "DAY"}), "has no field granularity; it has compression"),
        (config(segmentBuildConfig={"targetRowsPerSegment": 0}), "targetRowsPerSegment must be a whole number above 0"),
        (config(segmentBuildConfig={"targetRowsPerSegment": True}), "targetRowsPerSegment must be a whole number"),
        (config(segmentBuildConfig={"compression": "rar"}), "compression must be one of zstd"),
        (config(segmentsConfig={"replacedSegmentsRetentionPeriod": "soon"}), "period 'soon' is not valid; write days"),
        (config(segmentsConfig={"replacedSegmentsRetentionPeriod": ""}), "must be a non-empty string"),
        (config(segmentsConfig={"retentionTimeUnit": "DAYS"}), "must be set together"),
        (config(segmentsConfig={"segmentPushType": "UPSERT"}), "must be one of APPEND, REFRESH"),
        (config(quota={"storage": "lots"}), "size 'lots' is not valid"),
        (config(tableIndexConfig={"sortedColumn": ["a", "a"]}), "names a column twice"),
        (config(segmentsConfig=[]), "segmentsConfig must be a JSON object"),
        ([], "must be a JSON object, not list"),
        ({}, "tableName must be a non-empty string"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_the_field_that_is_wrong(
    table: Table, document: dict[str, object], message: str
) -> None:
    refuse(table, InvalidConfigError, message, lambda: table.store.apply_config(TableConfig.from_json(document)))


def test_all_visible_is_a_word_of_its_own_and_not_a_name(table: Table) -> None:
    refuse(table, RefusedError, "not visible", lambda: table.start(["ALL_VISIBLE"]), rule="from-not-visible")
    assert set(table.start(AllVisible.ALL_VISIBLE).segments_from) == {"a", "b"}
