"""Random histories of an upsert table: every mark is compared with an oracle after every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_segments.core.table import SegmentStore
from tests.upsert.histories import STEPS, run_histories


def test_every_mark_shows_what_it_must_after_every_step(store: SegmentStore, tmp_path: Path) -> None:
    checks, made = run_histories(store, tmp_path, range(6), 30)
    assert checks > 500
    assert not [name for name in (*STEPS, "killed", "overtaken") if not made[name]]


def test_every_mark_of_a_partial_table_shows_what_it_must(store: SegmentStore, tmp_path: Path) -> None:
    """Merged so that the new row stands, a partial table is like any other."""
    config = {"mode": "PARTIAL", "defaultPartialUpsertStrategy": "FORCE_OVERWRITE"}
    checks, made = run_histories(store, tmp_path, range(6, 9), 30, config=config)
    assert checks > 200
    assert made["killed"] and made["overtaken"] and made["bulk"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(100, 260, 10))
def test_every_mark_shows_what_it_must_in_long_histories(store: SegmentStore, tmp_path: Path, first: int) -> None:
    """About three minutes each."""
    checks, made = run_histories(store, tmp_path, range(first, first + 10), 100)
    assert checks > 5_000
    assert not [name for name in (*STEPS, "killed", "overtaken") if not made[name]]
