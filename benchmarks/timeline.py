"""What readers see of a table whose time was overwritten: the cost of deciding it, as segments, overwrites and time
chunks become more.

python -m benchmarks.timeline [--sizes 10000,100000,1000000] [--overwrites 0,100,10000]
                              [--chunks 1000,10000,100000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry, Overwrite
from airflow_provider_segments.core.model.interval import ALL_TIME, Granularity, Interval, parse_chunk, parse_time
from airflow_provider_segments.core.model.segment import SegmentRecord, encode_record
from airflow_provider_segments.core.registry import shard as registry_shard
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.snapshot import View, Visibility, _in_time_order
from benchmarks.report import end_properly, machine, show, table, verdict

HOUR = 3_600_000
DAY = 24
CHUNKS = 10_000
FIRST = parse_time("1970-01-01")
PUSHED = 10
"""Segments that one push brings into a time chunk: a shard of the registry."""
SHARED = 10
"""Of so many days, one has pushes of few segments, whose hours share a shard of their day."""
DAYS = 20
HORIZON = 1

NOTES = """\
All figures are CPU time of one process, the best of the rounds. The table has hourly chunks, beginning on {first}. A
push brings {pushed} segments into a chunk, in one shard, and each has a version of its own; on every tenth day the
hours of a push share one shard of the day. An overwrite is an entry of its own and holds from a minute to all of the
table's time, cutting chunks anywhere; the widths are spread evenly over the magnitudes, and the narrower is the newer.
Their versions are among the older half of all, so that some segments are hidden, some are cut, and the rest is newer
than every overwrite.

All times in ms. "whole" is what a reader runs when it has the lineage and the shards: it puts the shards in order,
reads the marks of the overwrites, and decides about every segment (core.snapshot.Visibility). "decode" is the JSON of
the records, which comes before and once. "day" is the same for one day: the shards of its chunks, all marks read anew;
the mean of {days} days. What chooses those shards in ZooKeeper is a look at the names of all chunks ("names"; the
parsed ones are cached, as long as there are no more than fit into the cache, 262,144).

The baselines only hold segments by time: they know nothing of versions, overwrites or lineage. "sorted list" is sorting
(start, name) of all segments, and a day cut out of it by bisection; "linear scan" looks for a day among all chunks,
which is how Druid looks up by default. "scan of overwrites" gives the answer for a day by looking at every overwrite
for every chunk; it must be the same as ours, and was compared."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10000,100000,1000000", help="segments in 10,000 chunks, joined by commas")
    parser.add_argument("--overwrites", default="0,100,10000", help="how many overwrites, joined by commas")
    parser.add_argument("--chunks", default="1000,10000,100000", help="chunks of 2 segments, joined by commas")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds")
    args = parser.parse_args()
    end_properly()
    print(machine(), flush=True)
    sizes, overwrites, chunks = (_numbers(text) for text in (args.sizes, args.overwrites, args.chunks))
    by_size = _measure([(CHUNKS, size // CHUNKS or 1) for size in sizes], overwrites, args.rounds)
    print(f"\n{CHUNKS:,} chunks, more and more segments.\n{_rows(by_size)}", flush=True)
    by_chunk = _measure([(count, 2) for count in chunks], overwrites, args.rounds)
    print(f"\n2 segments a chunk, more and more chunks.\n{_rows(by_chunk)}")
    print("\n".join(["Targets:", *_verdicts(by_size, by_chunk)]))
    print(NOTES.format(first="1970-01-01", pushed=PUSHED, days=DAYS))


@dataclass(frozen=True)
class Table:
    """Shards as they were read, by time chunk, and how many segments they have."""

    chunks: int
    shards: tuple[Shard, ...]
    segments: int

    @property
    def end(self) -> int:
        return FIRST + self.chunks * HOUR

    def fresh(self) -> list[Shard]:
        """The shards with nothing decoded."""
        return [dataclasses.replace(shard) for shard in self.shards]

    def of(self, interval: Interval) -> list[Shard]:
        """The shards that a reader of ``interval`` reads."""
        return [shard for shard in self.shards if parse_chunk(shard.name.chunk).overlaps(interval)]


Key = tuple[int, int, int]
Results = dict[Key, dict[str, float]]


def _measure(shapes: Iterable[tuple[int, int]], overwrites: Sequence[int], rounds: int) -> Results:
    """Figures by chunks, segments and overwrites: milliseconds, and how many segments are cut and hidden."""
    found: Results = {}
    for chunks, each in shapes:
        made = make_table(chunks, each)
        plain = _best(lambda made=made: _baselines(made), rounds)
        for count in overwrites:
            lineage = make_lineage(made, count)
            ours = _best(lambda made=made, lineage=lineage: _ours(made, lineage), rounds)
            found[chunks, made.segments, count] = ours | plain
    return found


def make_table(chunks: int, each: int) -> Table:
    """``each`` segments in every hourly chunk, pushed some at a time, each push with a greater version."""
    rng = random.Random(chunks * each)
    pushes = [range(at, min(at + PUSHED, each)) for at in range(0, each, PUSHED)]
    versions = iter(rng.sample(range(1, 4 * chunks * len(pushes)), chunks * len(pushes)))
    shards: list[Shard] = []
    for first in range(0, chunks, DAY):
        hours = [_chunk(at) for at in range(first, min(first + DAY, chunks))]
        for number, push in enumerate(pushes):
            if first // DAY % SHARED == 0:
                kept = Granularity.DAY.chunk_name(hours[0][1])
                records = [
                    one for name, at in hours for one in _records(name, at, number, push, next(versions), kept=False)
                ]
                shards.append(_shard(kept, number, records))
            else:
                for name, at in hours:
                    records = _records(name, at, number, push, next(versions), kept=True)
                    shards.append(_shard(name, number, records))
    return Table(chunks, tuple(shards), chunks * each)


def _chunk(at: int) -> tuple[str, int]:
    start = FIRST + at * HOUR
    return Granularity.HOUR.chunk_name(start), start


def _records(name: str, start: int, push: int, ids: range, version: int, *, kept: bool) -> list[SegmentRecord]:
    return [
        SegmentRecord(
            f"events_{name}_{push:04d}_{id_:05d}", f"{name}_{id_:05d}.1.parquet", 1000, 100_000, 1234567890,
            start, start + HOUR - 1, chunk=None if kept else name, version=version, partition=id_,
        )
        for id_ in ids
    ]  # fmt: skip


def _shard(chunk: str, push: int, records: Sequence[SegmentRecord]) -> Shard:
    entry_id = f"{push:08d}-0000-4000-8000-000000000000"
    payload = b"[" + b",".join(map(encode_record, records)) + b"]"
    name = registry_shard.parse_name(chunk, f"/bench/SEGMENTS/events/{chunk}", f"{entry_id}.build.1.0")
    return Shard(name, 0, HORIZON, msgspec.Raw(payload))


def make_lineage(made: Table, count: int) -> Lineage:
    """A lineage of ``count`` overwrites, all in force. The pushes themselves have left it."""
    rng = random.Random(made.segments + count)
    newest = max((record.version for shard in made.shards for record in shard.records), default=1)
    widths = sorted((int(60_000 * ((made.end - FIRST) / 60_000) ** rng.random()) for _ in range(count)), reverse=True)
    versions = sorted(rng.randrange(1, newest // 2) for _ in range(count))
    marks: dict[str, str | None] = {}
    entries: dict[str, LineageEntry] = {}
    for number, (width, version) in enumerate(zip(widths, versions, strict=True)):
        entry_id = f"{number:08d}-1111-4000-8000-000000000000"
        entries[entry_id] = LineageEntry.of(entry_id, (), (), EntryState.COMPLETED, 0)
        start = rng.randrange(FIRST - width, made.end)
        held = Lineage("events").with_overwrite([Overwrite(entry_id, start, start + width, version)])
        marks |= held.custom_map or {}
    return Lineage("events", MappingProxyType(entries), marks)


def _ours(made: Table, lineage: Lineage) -> dict[str, float]:
    """What a reader spends. A lineage keeps what it has made of its marks, so each look gets one of its own."""
    decoding = made.fresh()
    decode = _cpu(lambda: [shard.records for shard in decoding])
    kept: list[Visibility] = []
    whole = _cpu(lambda: kept.append(look(lineage, decoding, ALL_TIME)))
    visible = sum(len(records) for _, records in kept[0].blocks)
    found = {"decode": 1e3 * decode, "whole": 1e3 * whole}
    found |= {"cut": len(kept[0].cuts), "hidden": made.segments - visible}
    days = _days(made)
    shards = [made.of(day) for day in days]
    of_days: list[Visibility] = []
    day = _cpu(
        lambda: of_days.extend(look(lineage, some, interval) for some, interval in zip(shards, days, strict=True))
    )
    found["day"] = 1e3 * day / len(days)
    scanned: list[set[str]] = []
    scan = _cpu(lambda: scanned.append(_by_scan(lineage, shards[0], days[0])))
    assert scanned[0] == {record.name for _, records in of_days[0].blocks for record in records}
    return found | {"scan of overwrites": 1e3 * scan}


def look(lineage: Lineage, shards: Sequence[Shard], interval: Interval) -> Visibility:
    """What is visible, as a snapshot finds it."""
    return Visibility(View(dataclasses.replace(lineage), HORIZON), _in_time_order(shards), interval)


def _by_scan(lineage: Lineage, shards: Sequence[Shard], interval: Interval) -> set[str]:
    """Names of the segments that are visible in a part of their time that is in ``interval``, one overwrite after the
    other."""
    overwrites = dataclasses.replace(lineage).overwrites_in_force
    near: dict[Interval, list[Overwrite]] = {}
    found = set()
    for shard in shards:
        for record in shard.records:
            chunk = parse_chunk(shard.chunk_of(record))
            if not chunk.overlaps(interval):
                continue
            if chunk not in near:
                near[chunk] = [one for one in overwrites if one.overlaps(chunk)]
            if _is_visible(record.version, chunk, near[chunk]):
                found.add(record.name)
    return found


def _is_visible(version: int, chunk: Interval, overwrites: Iterable[Overwrite]) -> bool:
    """Whether overwrites of later versions leave a millisecond of the chunk."""
    at = chunk.start_ms
    for start, end in sorted((one.start_ms, one.end_ms) for one in overwrites if one.version > version):
        if start > at:
            return True
        at = max(at, end)
    return at < chunk.end_ms


def _baselines(made: Table) -> dict[str, float]:
    """A sorted list of all segments, and a scan of all chunks."""
    days, keys = _days(made), list[tuple[int, str]]()
    segments = [(record.min_time_ms or 0, record.name) for shard in made.shards for record in shard.records]
    random.Random(1).shuffle(segments)
    found = {"sorted list": 1e3 * _cpu(lambda: keys.extend(sorted(segments)))}

    def bisected() -> None:
        for day in days:
            keys[bisect_left(keys, (day.start_ms,)) : bisect_left(keys, (day.end_ms,))]

    found["day in it"] = 1e3 * _cpu(bisected) / len(days)
    names = list(dict.fromkeys(shard.name.chunk for shard in made.shards))
    spans = [parse_chunk(name) for name in names]
    some = days[:3]
    scan = _cpu(lambda: [[span for span in spans if span.overlaps(day)] for day in some])
    parse = _cpu(lambda: [[name for name in names if parse_chunk(name).overlaps(day)] for day in some])
    return found | {"linear scan": 1e3 * scan / len(some), "names": 1e3 * parse / len(some)}


def _days(made: Table) -> list[Interval]:
    """Whole days of the table, the same for everyone; among them as large a part as in the table has shared shards."""
    rng = random.Random(made.chunks)
    last = max(1, made.chunks // DAY)
    days = ((rng.randrange(last) // SHARED * SHARED + number % SHARED) % last for number in range(DAYS))
    return [Interval(FIRST + day * DAY * HOUR, FIRST + (day + 1) * DAY * HOUR) for day in days]


def _cpu(run: Callable[[], object]) -> float:
    gc.collect()
    started = time.process_time()
    run()
    return time.process_time() - started


def _best(run: Callable[[], dict[str, float]], rounds: int) -> dict[str, float]:
    found = [run() for _ in range(rounds)]
    return {name: min(one[name] for one in found) for name in found[0]}


_COUNTED = ("cut", "hidden")
_TIMED = ("decode", "whole", "day", "names", "sorted list", "day in it", "linear scan", "scan of overwrites")


def _rows(results: Results) -> str:
    rows = [
        [
            *(f"{one:,}" for one in (*key, *(int(found[name]) for name in _COUNTED))),
            *(show(found[name]) for name in _TIMED),
        ]
        for key, found in results.items()
    ]
    return table(["chunks", "segments", "overwrites", *_COUNTED, *_TIMED], rows)


def _verdicts(by_size: Results, by_chunk: Results) -> list[str]:
    found = []
    for (_, segments, overwrites), one in by_size.items():
        if segments == 1_000_000 and overwrites:
            what = f"{segments:,} segments under {overwrites:,} overwrites, CPU"
            found.append(
                verdict(what, one["whole"], 1_500, where=f" (their records decoded before: {show(one['decode'])})")
            )
    for (chunks, segments, overwrites), one in by_chunk.items():
        if fewer := by_chunk.get((chunks // 10, segments // 10, overwrites)):
            ratio = one["day"] / fewer["day"]
            met = "met" if ratio <= 2 else "MISSED"
            what = f"a day of {chunks:,} chunks over {chunks // 10:,}, {overwrites:,} overwrites"
            named = (one["day"] + one["names"]) / (fewer["day"] + fewer["names"])
            found.append(f"  {met:<7}{what}: factor {ratio:.2f}, target 2 (with the names: {named:.2f})")
    return found


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


if __name__ == "__main__":
    main()
