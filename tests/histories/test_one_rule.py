"""The one rule for what readers see, over random histories of a table through real calls (:mod:`tests.histories.lab`).

The slow run plays 20,000 histories in slices of 500 that share nothing, about an hour of one core:

    pytest -m slow tests/histories/test_one_rule.py            # or -n 4, with pytest-xdist
    pytest "tests/histories/test_one_rule.py::test_twenty_thousand_histories_show_what_the_rule_says[7000]"

A history that fails prints its seed and its steps; ``play(store, seed)`` plays it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from tests.histories.lab import play

A_FEW = 60
SLICE = 500
ALL = 20_000

USUAL = {
    "end done: append",
    "end done: correction",
    "end done: overwrite with rows",
    "end done: overwrite without rows",
    "end done: rewrite of its granularity",
    "end done: rewrite of another granularity",
    "end done: rewrite of a stale snapshot",
    "revert",
    "abort",
    "clean",
    "night",
    "lose",
    "killed",
    "meanwhile",
    "built-upon",
    "from-not-visible",
    "from-replaced",
    "lock-denied",
    "lock-revoked",
    "overwrite-unsettled",
    "replaced-are-deleted",
}
"""What a few histories contain: pushes of every kind that came to their end, what happened to them, and refusals."""

RARE = {
    "end done: rewrite of a cut segment",
    "end done: overwrite of 1 h",
    "end done: overwrite of 24 h",
    "lock-lost",
    "mend",
    "brought-are-deleted",
    "overwrite-not-locked",
    "switch",
    "unrevert done",
    "would-be-empty",
}
"""What some hundreds of histories contain, too."""


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[SegmentStore]:
    """A cluster on a server of its own: thousands of tables are not for the others to carry."""
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper", sync=False) as server,
        SegmentStore.connect(server.hosts, "histories", (tmp_path / "objects").as_uri()) as opened,
    ):
        yield opened


def play_all(store: SegmentStore, seeds: range) -> Counter[str]:
    """Play them; returns what happened, and how often."""
    taken: Counter[str] = Counter()
    for seed in seeds:
        play(store, seed, taken)
    print(f"\n{len(seeds)} histories, {taken['checks']:,} looks at what readers see; {sorted(taken.items())}")
    return taken


def test_a_few_histories_show_what_the_rule_says(own_store: SegmentStore) -> None:
    taken = play_all(own_store, range(A_FEW))
    assert not USUAL - taken.keys()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(0, ALL, SLICE))
def test_twenty_thousand_histories_show_what_the_rule_says(own_store: SegmentStore, first: int) -> None:
    taken = play_all(own_store, range(first, first + SLICE))
    assert not (USUAL | RARE) - taken.keys()
