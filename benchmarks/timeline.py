"""The timeline: bulk load, lookup, single changes and batched removal, and their cost as the table grows.

python -m benchmarks.timeline [--sizes 10000,100000,1000000] [--chunks 10000,50000,100000,500000]
                              [--windows 1000,5000,20000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.timeline import Timeline, VersionedSegment
from benchmarks.report import end_properly, machine, show, table, verdict

HOUR = 3_600_000
DAY = 24
MINUTE = 60_000
CHUNKS = 10_000
LOOKUPS = 2_000
CHANGES = 500

NOTES = """\
All figures are CPU time of one process, the best of the rounds. Segments arrive shuffled, in hourly chunks: 80 % are
appended, 10 % are one atomic group that replaced five eighths of them, 10 % come later. "first" is the first lookup of
a stretch, which makes the lists of visible segments that later ones share. "add" puts one segment in a chunk that is
there, "new chunk" one where none was, in the middle of the table; "new version" cuts two chunks in halves. The
baselines only hold segments by time: they know nothing of versions, groups or overshadowing; "linear scan" is how
Druid looks up by default. A sliding window is a day long, a minute after the one before, and of its own version."""

Segment = VersionedSegment[None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10000,100000,1000000", help="segments in 10,000 chunks, joined by commas")
    parser.add_argument("--chunks", default="10000,50000,100000,500000", help="chunks of 2 segments, joined by commas")
    parser.add_argument("--windows", default="1000,5000,20000", help="overlapping windows, joined by commas")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds")
    args = parser.parse_args()
    end_properly()
    print(machine(), flush=True)
    sizes, chunks, windows = (_numbers(text) for text in (args.sizes, args.chunks, args.windows))
    by_size = {size: _best([lambda size=size: by_segments(size) for _ in range(args.rounds)]) for size in sizes}
    print(f"\n{CHUNKS:,} chunks. Load and removal in ms, the rest in microseconds an operation.")
    print(_rows("segments", by_size), flush=True)
    by_chunk = {count: _best([lambda count=count: by_chunks(count) for _ in range(args.rounds)]) for count in chunks}
    print("\n2 segments a chunk, more and more chunks. Load in ms, the rest in microseconds an operation.")
    print(_rows("chunks", by_chunk), flush=True)
    by_window = {count: _best([lambda count=count: sliding(count) for _ in range(args.rounds)]) for count in windows}
    print("\nSliding windows, each overlapping 1,439 others on either side, ms.")
    print(_rows("windows", by_window))
    print("\n".join(["Targets:", *_verdicts(by_size, by_chunk, by_window)]))
    print(NOTES)


def by_segments(size: int) -> dict[str, float]:
    """Everything on ``size`` segments in :data:`CHUNKS` chunks."""
    rng = random.Random(size)
    segments = made(CHUNKS, max(1, size // CHUNKS))
    rng.shuffle(segments)
    timeline: Timeline[None] = Timeline("t")
    found = {"load": 1e3 * _cpu(lambda: timeline.add_all(segments))}
    found |= _lookups(timeline, CHUNKS, rng) | _changes(timeline, CHUNKS, rng)
    gone = rng.sample(segments, len(segments) // 10)
    found["remove 10 %"] = 1e3 * _cpu(lambda: timeline.remove_all(gone))
    found["remove 10 %, each"] = 1e3 * found["remove 10 %"] / len(gone)
    return found | _baselines(segments, rng)


def by_chunks(count: int) -> dict[str, float]:
    """The cost of an operation on ``count`` chunks of two segments."""
    rng = random.Random(count)
    segments = made(count, 2)
    rng.shuffle(segments)
    timeline: Timeline[None] = Timeline("t")
    found = {"load": 1e3 * _cpu(lambda: timeline.add_all(segments))}
    return found | _lookups(timeline, count, rng) | _changes(timeline, count, rng)


def sliding(count: int) -> dict[str, float]:
    """Druid #8846: ``count`` windows of a day, a minute apart."""
    windows = [
        VersionedSegment(Interval(at * MINUTE, at * MINUTE + DAY * HOUR), f"{at:07d}", 0, None) for at in range(count)
    ]
    shuffled = random.Random(count).sample(windows, count)
    timeline: Timeline[None] = Timeline("t")
    found = {"load": 1e3 * _cpu(lambda: timeline.add_all(shuffled))}
    half = shuffled[: count // 2]
    found["remove half"] = 1e3 * _cpu(lambda: timeline.remove_all(half))
    found["add half again"] = 1e3 * _cpu(lambda: timeline.add_all(half))
    found["remove all"] = 1e3 * _cpu(lambda: timeline.remove_all(windows))
    one_by_one: Timeline[None] = Timeline("t")
    found["add one by one"] = 1e3 * _cpu(lambda: [one_by_one.add(one) for one in shuffled])
    some = shuffled[: min(CHANGES, count)]
    found["remove one, us"] = 1e6 * _cpu(lambda: [one_by_one.remove(one) for one in some]) / len(some)
    return found


def made(chunks: int, each: int) -> list[Segment]:
    """``each`` segments in every hourly chunk, a tenth of them one group that replaced half of the chunk."""
    appended = max(1, each * 8 // 10)
    group = tuple(range(appended, appended + each // 10))
    over = tuple(range(appended * 5 // 8))
    found: list[Segment] = []
    for at in range(chunks):
        interval = Interval(2 * at * HOUR, (2 * at + 1) * HOUR)  # every other hour, so that there is room between
        found.extend([VersionedSegment(interval, "2024", id_, None) for id_ in range(appended)])
        found.extend([VersionedSegment(interval, "2024", id_, None, over, group) for id_ in group])
        later = range(appended + len(group), each)
        found.extend([VersionedSegment(interval, "2024", id_, None) for id_ in later])
    return found


def _lookups(timeline: Timeline[None], chunks: int, rng: random.Random) -> dict[str, float]:
    """One day: 24 chunks. The same stretches twice; the timeline has made nothing yet."""
    days = [_day(rng.randrange(chunks - DAY)) for _ in range(LOOKUPS)]
    first = _cpu(lambda: [timeline.lookup(day) for day in days[:200]])
    for day in days:
        timeline.lookup(day)
    again = _cpu(lambda: [timeline.lookup(day) for day in days])
    return {"lookup, first": 1e6 * first / 200, "lookup": 1e6 * again / len(days)}


def _day(at: int) -> Interval:
    return Interval(2 * at * HOUR, 2 * (at + DAY) * HOUR)


def _changes(timeline: Timeline[None], chunks: int, rng: random.Random) -> dict[str, float]:
    """Single changes, each undone before the next kind is measured."""
    places = rng.sample(range(chunks - 1), CHANGES)
    more = [VersionedSegment(Interval(2 * at * HOUR, (2 * at + 1) * HOUR), "2024", 1_000, None) for at in places]
    new = [VersionedSegment(Interval((2 * at + 1) * HOUR, (2 * at + 2) * HOUR), "2024", 0, None) for at in places]
    # From the middle of one chunk to the middle of the next.
    cut = [
        VersionedSegment(Interval((2 * at) * HOUR + HOUR // 2, (2 * at + 2) * HOUR + HOUR // 2), f"3{at:07d}", 0, None)
        for at in places
    ]
    found: dict[str, float] = {}
    for name, some in (("add", more), ("new chunk", new), ("new version", cut)):
        found[name] = 1e6 * _cpu(lambda some=some: [timeline.add(one) for one in some]) / CHANGES
        remove = 1e6 * _cpu(lambda some=some: [timeline.remove(one) for one in some]) / CHANGES
        if name != "new chunk":
            found["remove" if name == "add" else "remove version"] = remove
        timeline.remove_all(some, forget=True)
    return found


def _baselines(segments: Sequence[Segment], rng: random.Random) -> dict[str, float]:
    """A sorted list, a sorted dictionary where sortedcontainers is installed, and a scan of all intervals."""
    days = [_day(rng.randrange(CHUNKS - DAY)) for _ in range(LOOKUPS)]
    keys: list[tuple[int, int]] = []
    found = {"sorted list: load": 1e3 * _cpu(lambda: keys.extend(sorted(_key(one) for one in segments)))}

    def bisected() -> None:
        for day in days[:200]:
            keys[bisect_left(keys, (day.start_ms,)) : bisect_left(keys, (day.end_ms,))]

    found["lookup in it"] = 1e6 * _cpu(bisected) / 200
    if importlib.util.find_spec("sortedcontainers") is not None:
        found |= _sorted_dict(segments, days)
    spans = sorted({(one.interval.start_ms, one.interval.end_ms) for one in segments})

    def scanned() -> None:
        for day in days[:10]:
            [span for span in spans if span[0] < day.end_ms and day.start_ms < span[1]]

    found["linear scan: lookup"] = 1e6 * _cpu(scanned) / 10
    return found


def _sorted_dict(segments: Sequence[Segment], days: Sequence[Interval]) -> dict[str, float]:
    import sortedcontainers

    held: Any = sortedcontainers.SortedDict()
    load = _cpu(lambda: held.update((_key(one), one) for one in segments))

    def ranged() -> None:
        for day in days[:200]:
            [held[key] for key in held.irange((day.start_ms,), (day.end_ms,))]

    return {"SortedDict: load": 1e3 * load, "lookup in that": 1e6 * _cpu(ranged) / 200}


def _key(segment: Segment) -> tuple[int, int]:
    return segment.interval.start_ms, segment.partition


def _cpu(run: Callable[[], object]) -> float:
    gc.collect()
    started = time.process_time()
    run()
    return time.process_time() - started


def _best(runs: Sequence[Callable[[], dict[str, float]]]) -> dict[str, float]:
    found = [run() for run in runs]
    return {name: min(one[name] for one in found) for name in found[0]}


def _rows(first: str, results: dict[int, dict[str, float]]) -> str:
    names = list(next(iter(results.values())))
    return table(
        [first, *(f"{count:,}" for count in results)],
        [[name, *(show(found[name]) for found in results.values())] for name in names],
    )


def _verdicts(
    by_size: dict[int, dict[str, float]], by_chunk: dict[int, dict[str, float]], by_window: dict[int, dict[str, float]]
) -> list[str]:
    found = []
    if 1_000_000 in by_size:
        found.append(verdict("load of 1,000,000 segments, CPU", by_size[1_000_000]["load"], 1_500))
    few, many = min(by_chunk), max(by_chunk)
    ratio = by_chunk[many]["lookup"] / by_chunk[few]["lookup"]
    met = "met" if ratio <= 2 else "MISSED"
    found.append(f"  {met:<7}lookup of a day, {many:,} chunks over {few:,}: factor {ratio:.2f}, target 2")
    if 5_000 in by_window:
        both = by_window[5_000]["load"] + by_window[5_000]["remove all"]
        found.append(verdict("5,000 sliding windows, load and remove all", both, 1_000))
    return found


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


if __name__ == "__main__":
    main()
