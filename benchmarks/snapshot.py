"""Find the visible files: the whole table, and one day of its year; ours, delta-rs and pyiceberg in the same run.

python -m benchmarks.snapshot [--sizes 10,1000,10000,100000] [--rounds 7] [--only segments,delta-rs,pyiceberg]
    [--store local|s3] [--servers 1|3]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.meter import NOTES as COSTS
from benchmarks.meter import Costs, cost_table
from benchmarks.places import Folder
from benchmarks.report import end_properly, machine, median, show, table, verdict
from benchmarks.systems import Delta, Iceberg, Segments, Surroundings, System, add_surroundings, surroundings

DAYS = 365
SYSTEMS = (Segments.name, Delta.name, Iceberg.name)
DAY = datetime.date(2013, 6, 1)

NOTES = """\
"Nothing changed" is table.snapshot(known=...), two versions asked in one go.
"whole" is the snapshot alone, "+files" with the addresses of all files, "+meta" with the metadata of all files as
objects (ours: .segments) or as an Arrow table (delta-rs); pyiceberg plans all three at once. Each measurement starts
without anything read: ours keeps its ZooKeeper session and reads everything anew, delta-rs opens the table, pyiceberg
loads it from its catalog. "day" is the files of one day out of the year. All tables hold one replaced and one visible
push. Medians of the rounds."""

Results = dict[tuple[str, int], dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10,1000,10000,100000", help="files, joined by commas")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds a size")
    parser.add_argument("--only", default=",".join(SYSTEMS), help="systems, joined by commas")
    add_surroundings(parser)
    args = parser.parse_args()
    sizes, names = [int(size) for size in args.sizes.split(",")], args.only.split(",")
    end_properly()
    print(machine(), flush=True)
    results: Results = {}
    costs: dict[str, Costs] = {}
    folder = Path(tempfile.mkdtemp(prefix="snapshot-", dir=args.folder))
    try:
        with surroundings(folder, args.store, args.servers) as around:
            for size in sizes:
                for name in names:
                    with around.system(name, size, DAYS) as system:
                        results[name, size], costs[f"{size:,} {name}"] = _measure(system, args.rounds)
            days = _days(around, args.rounds) if "segments" in names else {}
    finally:
        shutil.rmtree(folder)
    print(f"Objects: {args.store}; ZooKeeper servers: {args.servers}")
    print(_table(sizes, results))
    print(cost_table("What it costs to find all files, with addresses and metadata", costs))
    if days:
        print("One day of 10 files out of n days, ms: " + "   ".join(f"{n:,}: {show(ms)}" for n, ms in days.items()))
    again = {size: results[Segments.name, size]["again"] for size in sizes if (Segments.name, size) in results}
    print("Nothing changed since the last snapshot, ms: " + "   ".join(f"{n:,}: {show(ms)}" for n, ms in again.items()))
    print("\n".join(["Targets:", *_verdicts(results)]))
    print(f"{NOTES}\n{COSTS}")


def _measure(system: System, rounds: int) -> tuple[dict[str, float], Costs]:
    system.replace()
    system.resolve()
    system.meter.taken()
    whole = [system.resolve() for _ in range(rounds)]
    found = {step: median([one[step] for one in whole]) for step in whole[0]}
    spent = {name: value / rounds for name, value in system.meter.taken().items()}
    if isinstance(system, Segments):
        found["again"] = median([system.look_again() for _ in range(rounds)])
    return found | {"day": median([system.resolve_day(DAY) for _ in range(rounds)])}, spent


def _days(around: Surroundings, rounds: int) -> dict[int, float]:
    """The cost of one day of 10 files as the table grows in days. Nobody looks at the files."""
    found = {}
    (around.folder / "many-days").mkdir()
    local = dataclasses.replace(around, place=Folder(around.folder / "many-days"))
    with local.store("days") as (store, where):
        for days in (36, 365, 3650):
            system = Segments(store, where, days * 10, days, f"days{days}")
            found[days] = median([system.resolve_day(datetime.date(2013, 1, 20)) for _ in range(rounds)])
    return found


def _table(sizes: list[int], results: Results) -> str:
    names = [name for name in SYSTEMS if any((name, size) in results for size in sizes)]
    steps = [("snapshot", "whole"), ("files", "+files"), ("metadata", "+meta"), ("day", "day")]
    head = ["files", *[f"{name} {title}" if title == "whole" else title for name in names for _, title in steps]]
    rows = [[f"{size:,}", *[show(results[name, size][step]) for name in names for step, _ in steps]] for size in sizes]
    return table(head, rows)


def _verdicts(results: Results) -> Iterator[str]:
    for size, target in ((10_000, 50.0), (100_000, 400.0)):
        if ours := results.get(("segments", size)):
            yield verdict(f"snapshot of {size:,} files", ours["snapshot"], target)
            yield verdict(f"snapshot of {size:,} files with .files", ours["files"], target)
            yield verdict(f"snapshot of {size:,} files with .files and .segments", ours["metadata"], target)


if __name__ == "__main__":
    main()
