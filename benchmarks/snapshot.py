"""Find the visible files: the whole table, and one day of its year; ours, delta-rs and pyiceberg in the same run.

python -m benchmarks.snapshot [--sizes 10,1000,10000,100000] [--rounds 7] [--only segments,delta-rs,pyiceberg]
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import end_properly, machine, median, show, table, verdict
from benchmarks.systems import Delta, Iceberg, Segments, System, segment_store, warm_up

DAYS = 365
DAY = datetime.date(2013, 6, 1)

NOTES = """\
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
    parser.add_argument("--only", default="segments,delta-rs,pyiceberg", help="systems, joined by commas")
    parser.add_argument("--folder", help="where files are made (default: a temporary folder)")
    args = parser.parse_args()
    sizes, names = [int(size) for size in args.sizes.split(",")], args.only.split(",")
    end_properly()
    print(machine(), flush=True)
    results: Results = {}
    folder = Path(tempfile.mkdtemp(prefix="snapshot-", dir=args.folder))
    try:
        for size in sizes:
            for name in names:
                results[name, size] = _measure_in(folder / f"{name}-{size}", name, size, args.rounds)
        days = _days(folder, args.rounds) if "segments" in names else {}
    finally:
        shutil.rmtree(folder)
    print(_table(sizes, results))
    if days:
        print("One day of 10 files out of n days, ms: " + "   ".join(f"{n:,}: {show(ms)}" for n, ms in days.items()))
    print("\n".join(["Targets:", *_verdicts(results)]))
    print(NOTES)


def _measure_in(folder: Path, name: str, size: int, rounds: int) -> dict[str, float]:
    folder.mkdir()
    try:
        if name == "segments":
            with segment_store(folder) as (store, root):
                warm_up(store, root, DAYS)
                return _measure(Segments(store, root, size, DAYS, "flights"), rounds)
        system: System = Delta(folder / "t", size, DAYS) if name == "delta-rs" else Iceberg(folder / "t", size, DAYS)
        return _measure(system, rounds)
    finally:
        shutil.rmtree(folder)


def _measure(system: System, rounds: int) -> dict[str, float]:
    system.replace()
    system.resolve()
    whole = [system.resolve() for _ in range(rounds)]
    found = {step: median([one[step] for one in whole]) for step in whole[0]}
    return found | {"day": median([system.resolve_day(DAY) for _ in range(rounds)])}


def _days(folder: Path, rounds: int) -> dict[int, float]:
    """The cost of one day of 10 files as the table grows in days."""
    found = {}
    with segment_store(folder) as (store, root):
        warm_up(store, root, DAYS)
        for days in (36, 365, 3650):
            system = Segments(store, root, days * 10, days, f"days{days}")
            found[days] = median([system.resolve_day(datetime.date(2013, 1, 20)) for _ in range(rounds)])
    return found


def _table(sizes: list[int], results: Results) -> str:
    names = [name for name in ("segments", "delta-rs", "pyiceberg") if any((name, size) in results for size in sizes)]
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
