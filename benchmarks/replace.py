"""Replace n files by n files, and roll back: ours, delta-rs and pyiceberg, on the same machine in the same run.

python -m benchmarks.replace [--sizes 10,1000,10000,100000] [--rounds 5] [--only segments,publish,delta-rs,pyiceberg]
    [--store local|s3] [--servers 1|3]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.meter import NOTES as COSTS
from benchmarks.meter import Costs, cost_table, mean
from benchmarks.report import end_properly, machine, median, show, table, verdict
from benchmarks.systems import SYSTEMS, System, Timings, add_surroundings, surroundings

DAYS = 365
SLOW_MS = 8_000.0
"""A system that needs longer than this for one replacement gets one round only."""

NOTES = """\
What is timed. segments: start, stage (opening included) and end; each step reads its state anew and is a synced write
to ZooKeeper, and end lists the push's objects and compares every size. publish: start and publish, for a push by one
process; every check is made. delta-rs: the table is opened and one overwrite
commit of prepared add actions written; it neither syncs nor looks at the files. pyiceberg: the table is loaded from
its catalog and one overwrite snapshot of prepared data files committed (manifests, one row of SQLite); it does not
look at the files. Roll back: segments revert (one transaction, all rules checked); delta-rs open and restore (a new
commit of all actions, after a look at the files); pyiceberg load and a move of the main ref. Making the files is in no
timing. Medians of the rounds; before each round the table holds one settled push of n files. The ZooKeeper server is
warmed up, as one that runs for months is."""

Results = dict[tuple[str, int], dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10,1000,10000,100000", help="files a push, joined by commas")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds a size")
    parser.add_argument("--only", default=",".join(SYSTEMS), help="systems, joined by commas")
    add_surroundings(parser)
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    end_properly()
    print(machine(), flush=True)
    results: Results = {}
    costs: dict[str, Costs] = {}
    folder = Path(tempfile.mkdtemp(prefix="replace-", dir=args.folder))
    try:
        with surroundings(folder, args.store, args.servers) as around:
            for size in sizes:
                for name in args.only.split(","):
                    with around.system(name, size, DAYS) as system:
                        results[name, size], spent = _measure(system, args.rounds)
                    costs |= {f"{size:,} {name}: {step}": cost for step, cost in spent.items()}
    finally:
        shutil.rmtree(folder)
    print(f"Objects: {args.store}; ZooKeeper servers: {args.servers}")
    print(_table(sizes, results))
    print(cost_table("What one round costs", costs))
    print(_growth(sizes, results))
    print("\n".join(["Targets:", *_verdicts(sizes, results)]))
    print(f"{NOTES}\n{COSTS}")


def _measure(system: System, rounds: int) -> tuple[dict[str, float], dict[str, Costs]]:
    steps: list[Timings] = []
    backs: list[float] = []
    costs: dict[str, list[Costs]] = {"replace": [], "roll back": []}
    for _ in range(rounds):
        steps.append(system.replace())
        costs["replace"].append(system.meter.taken())
        backs.append(system.roll_back())
        costs["roll back"].append(system.meter.taken())
        system.settle()
        if sum(steps[-1].values()) > SLOW_MS:
            break
    found = {step: median([one[step] for one in steps]) for step in steps[0]}
    found |= {"total": median([sum(one.values()) for one in steps]), "back": median(backs)}
    return found, {step: mean(spent) for step, spent in costs.items()}


def _table(sizes: list[int], results: Results) -> str:
    head = ["files", "start", "stage", "end", *SYSTEMS, "revert", "revert", "restore", "ref move"]
    rows = []
    for size in sizes:
        ours = results.get(("segments", size), {})
        found = [results.get((name, size), {}) for name in SYSTEMS]
        cells = [ours.get(step) for step in ("start", "stage", "end")]
        cells += [one.get("total") for one in found] + [one.get("back") for one in found]
        rows.append([f"{size:,}", *map(show, cells)])
    above = " " * 31 + "replace, in all, ms" + " " * 12 + "roll back, ms"
    return f"{above}\n{table(head, rows)}"


def _growth(sizes: list[int], results: Results) -> str:
    lines = ["Cost of one more file (ms a thousand files):"]
    for name in SYSTEMS:
        parts = [
            f"{size:,}: {show(results[name, size]['total'] / size * 1000)}" for size in sizes if (name, size) in results
        ]
        lines.append(f"  {name:<10}" + "   ".join(parts))
    return "\n".join(lines)


def _verdicts(sizes: list[int], results: Results) -> Iterator[str]:
    for size in sizes:
        ours, delta = results.get(("segments", size)), results.get(("delta-rs", size))
        if ours and delta and size >= 1000:
            where = f" (delta-rs in this run; its commit without opening the table {show(delta['commit'])} ms)"
            yield verdict(f"replace {size:,} files", ours["total"], delta["total"], where=where)
    for size, target in ((10_000, 20.0), (100_000, 200.0)):
        if ours := results.get(("segments", size)):
            yield verdict(f"revert {size:,} files", ours["back"], target)


if __name__ == "__main__":
    main()
