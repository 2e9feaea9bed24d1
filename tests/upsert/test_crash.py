"""Ingestion, compaction and expiry are killed at each of their writes, of metadata and of objects: right before it is
sent, and right after it landed.

A child process ends itself there. Afterwards readers see the table without the batch, or with it, and the same work
once more brings it to where one run would have. In the end storage holds exactly what is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.expiry import expire
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.owner import own_key_partitions
from airflow_provider_segments.upsert.reading import read_rows
from tests.support.children import dies
from tests.support.owned import settle
from tests.support.sessions import DyingSession, settings
from tests.support.tables import on_session
from tests.upsert.world import Event, newest, to_arrow, upsert_config

FIRST = [Event(1, 0, at, f"k{at}", f"a{at}", False) for at in range(6)]
SECOND = [Event(2, 0, 6 + at, f"k{at}", f"b{at}", at == 3) for at in range(4)]
MOST_WRITES = 40


def rows_of(table: Table) -> dict[str, str]:
    rows = [(row["k"], row["v"]) for row in read_rows(table).to_pylist()]
    assert len({key for key, _ in rows}) == len(rows), f"two rows of a key: {rows}"
    return dict(rows)


def dying_table(store: SegmentStore, name: str, at: int, *, landed: bool) -> Table:
    """The table through a session and a storage that end the process at the ``at``-th write of either."""
    session = DyingSession.connect(settings(store.session.settings.hosts))
    opened = on_session(store, session).table(name)
    put = type(opened.storage).put_file

    def put_file(*arguments: Any, **options: Any) -> Any:
        session.writes += 1
        session.before()
        done = put(*arguments, **options)
        session.after()
        return done

    type(opened.storage).put_file = put_file  # type: ignore[method-assign] # this process ends with the test's step
    session.at, session.landed, session.writes = at, landed, 0
    return opened


def assert_ingested_once(table: Table, cache: Path) -> None:
    """The table is as before the batch, or has it; another run ends with it, and not with more."""
    assert rows_of(table) in (newest(FIRST), newest([*FIRST, *SECOND]))
    ingestor = UpsertIngestor(table, cache=cache)
    ingestor.take_over()
    ingestor.ingest(to_arrow(SECOND))
    assert rows_of(table) == newest([*FIRST, *SECOND])
    assert require_record(table.lineage()).clock == 2
    assert ingestor.positions() == {"/0": 10}


@dataclass(frozen=True)
class Case:
    """A table of its own for each write at which something is killed."""

    store: SegmentStore
    name: str
    cache: Path

    @property
    def table(self) -> Table:
        return self.store.table(self.name)

    def ingest(self, *batches: list[Event]) -> None:
        for batch in batches:
            UpsertIngestor(self.table, cache=self.cache).ingest(to_arrow(batch))


def kill_at_every_write(
    store: SegmentStore,
    folder: Path,
    *,
    landed: bool,
    before: Sequence[list[Event]],
    work: Callable[[Table, Path], object],
    check: Callable[[Case], None],
) -> None:
    """Ingest ``before``, kill ``work`` at one of its writes, and ``check``; at the next write with another table, until
    the work comes to its end."""
    for at in range(1, MOST_WRITES):
        case = Case(store, f"t{at}", folder / str(at))
        store.apply_config(upsert_config(case.name))
        case.ingest(*before)
        killed = dies(partial(_work_and_die, case, at, landed, work))
        check(case)
        settle(store, case.name)
        if not killed:
            assert at > 4
            return
    pytest.fail(f"more than {MOST_WRITES} writes")


def _work_and_die(case: Case, at: int, landed: bool, work: Callable[[Table, Path], object]) -> None:
    work(dying_table(case.store, case.name, at, landed=landed), case.cache)


@pytest.mark.parametrize("landed", [False, True])
def test_ingestion_that_is_killed_at_any_write_counts_every_event_once(
    store: SegmentStore, tmp_path: Path, landed: bool
) -> None:
    def work(table: Table, cache: Path) -> None:
        UpsertIngestor(table, cache=cache).ingest(to_arrow(SECOND))

    def check(case: Case) -> None:
        assert_ingested_once(case.table, case.cache)

    kill_at_every_write(store, tmp_path, landed=landed, before=[FIRST], work=work, check=check)


@pytest.mark.parametrize("landed", [False, True])
def test_a_compaction_that_is_killed_at_any_write_changes_nothing_that_is_seen(
    store: SegmentStore, tmp_path: Path, landed: bool
) -> None:
    def work(table: Table, _: Path) -> None:
        UpsertCompactor(table).run(floor=2)

    def check(case: Case) -> None:
        table, everything = case.table, newest([*FIRST, *SECOND])
        assert rows_of(table) == everything
        UpsertCompactor(table).run(floor=2)
        assert rows_of(table) == everything
        assert sum(segment.rows for segment in table.snapshot().segments) == len(newest(FIRST))  # a tombstone stays

    kill_at_every_write(store, tmp_path, landed=landed, before=[FIRST, SECOND], work=work, check=check)


@pytest.mark.parametrize("landed", [False, True])
def test_an_expiry_that_is_killed_at_any_write_ends_all_old_rows_or_none(
    store: SegmentStore, tmp_path: Path, landed: bool
) -> None:
    def work(table: Table, _: Path) -> None:
        expire(table, 2)

    def check(case: Case) -> None:
        table, young = case.table, newest([*FIRST, *SECOND], 2)
        assert rows_of(table) in (newest([*FIRST, *SECOND]), young)
        expire(table, 2)
        assert rows_of(table) == young
        assert require_record(table.lineage()).clock == 3

    kill_at_every_write(store, tmp_path, landed=landed, before=[FIRST, SECOND], work=work, check=check)


def test_another_process_goes_on_after_the_lease_of_one_that_was_killed(store: SegmentStore, tmp_path: Path) -> None:
    store.apply_config(upsert_config())
    table = store.table("t")

    def work() -> None:
        session = DyingSession.connect(settings(store.session.settings.hosts))
        opened = on_session(store, session).table("t")
        with own_key_partitions(opened, "first", lease_ms=2_000) as lock:
            ingestor = UpsertIngestor(opened, locks=(lock,), cache=tmp_path / "first")
            ingestor.ingest(to_arrow(FIRST))
            session.at = session.writes + 2
            ingestor.ingest(to_arrow(SECOND))

    assert dies(work)
    with own_key_partitions(table, "second", wait_s=120) as lock:
        ingestor = UpsertIngestor(table, locks=(lock,), cache=tmp_path / "second")
        assert ingestor.take_over()
        ingestor.ingest(to_arrow(SECOND))
    assert rows_of(table) == newest([*FIRST, *SECOND])
    assert require_record(table.lineage()).clock == 2
