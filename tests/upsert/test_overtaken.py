"""A compaction of a table that keeps few versions, and a batch that is published between any two of its writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from tests.support.tables import on_session
from tests.upsert.world import Event, InterruptedSession, newest, to_arrow, upsert_config

MOST_WRITES = 40


def test_rows_that_end_while_they_are_moved_stay_ended_although_the_floor_rises(
    store: SegmentStore, tmp_path: Path
) -> None:
    """Every publish can raise the floor: the end of a row that is just being moved may be below it by then."""
    first = [Event(1, 0, at, f"k{at}", f"a{at}", False) for at in range(4)]
    second = [Event(2, 0, 4 + at, f"k{at}", f"b{at}", False) for at in range(2)]
    for at in range(1, MOST_WRITES):
        store.apply_config(upsert_config(f"t{at}", keepVersions=1))
        table = store.table(f"t{at}")
        ingestor = UpsertIngestor(table, cache=tmp_path / str(at))
        for event in first:
            ingestor.ingest(to_arrow([event]))
        session = InterruptedSession.connect(store.session.settings)
        try:
            compactor = UpsertCompactor(on_session(store, session).table(f"t{at}"))
            session.arm(
                at,
                landed=True,
                interrupt=lambda ingestor=ingestor: [ingestor.ingest(to_arrow([one])) for one in second],
            )  # type: ignore[misc]
            compactor.run()
            overtaken = not session.at
        finally:
            session.close()
        rows = [(row["k"], row["v"]) for row in read_rows(table).to_pylist()]
        assert sorted(rows) == sorted(newest([*first, *(second if overtaken else [])]).items())
        if not overtaken:
            assert at > 4
            return
    pytest.fail(f"more than {MOST_WRITES} writes")
