"""Compact 1,000 small files: ours, plain Spark, delta-rs and DuckDB, on the same input in the same run.

python -m benchmarks.compaction [--files 1000] [--rows 5000000] [--rounds 5] [--shapes one,twenty]
                                [--only segments,spark,delta-rs,duckdb] [--folder F] [--plain-table]
                                [--store local|s3] [--servers 1|3]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import rewriters
from benchmarks.events import Input, make_input
from benchmarks.report import end_properly, machine, median, show, table, verdict
from benchmarks.rewriters import Done
from benchmarks.systems import add_surroundings, surroundings

SHAPES = {"one": 1, "twenty": 20}
WAIT_S = 600.0
SPAWN = multiprocessing.get_context("spawn")

NOTES = """\
Input: {files:,} files of {columns} columns (time, two integers, a double, a short text), zstd, written by our own
segment writer, each sorted by time within itself, all over their day; {input_mb:.0f} MB. Every round works on a fresh
copy, made outside of the timing, in the page cache for everyone. Each system has a process (and where it needs one, a
Spark session, local[2], 2 GB) of its own, made before; "first" is its first round, with whatever it loads then, and
in no median. After each round all rows are read by DuckDB and must be those of the input (count and a sum of row
hashes); "sorted" says whether each file was found to be sorted by time, and whether files of one chunk overlap.

segments    spark.compact.compact_table: snapshot and reader's lease, plan, a lineage replacement a chunk (ZooKeeper
            with fsync), footers read to bound memory, all files read and hashed, sorted by time, cut at chunk
            and target, written, read back and hashed anew, CRC-32, uploaded with fsync, staged, counted, switched.
            {table} The inputs stay for a rollback, until two-phase deletion.
spark       spark.read.parquet(...).sort(time).write.parquet(...) to as many files. Sorted. No checks, no fsync, nothing
            is published: readers of the folder have to be sent elsewhere. Files are not cut at the chunks.
delta-rs    DeltaTable(...).optimize.compact(...), zstd, target size set for as many files. Rows of a file in the
            order in which the input files were read: not sorted. One commit. No read-back, no hash, no fsync.
duckdb      COPY (SELECT * FROM read_parquet(...) ORDER BY time) TO ... (FORMAT parquet, COMPRESSION zstd), one
            statement and file a chunk (cut by size, its files are not sorted). Sorted. No checks, no fsync, nothing is
            published.

With --store s3 the tables of segments and delta-rs are on S3, each written by its own S3 code; plain Spark and DuckDB
keep no table, and stay on this disk. pyiceberg has no compaction.

CPU is user and system time of the system's whole process tree (of ours not ZooKeeper's server); memory is the sum of
its processes' peaks in the round, which counts pages that forked workers share once for each, and a JVM's free heap."""

Results = dict[tuple[str, str], list[Done]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="input files")
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of all input files")
    parser.add_argument("--target", type=int, default=1_000_000, help="rows of an output file")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after a first one")
    parser.add_argument("--shapes", default="one,twenty", help="how many time chunks the input has")
    parser.add_argument("--only", default=",".join(rewriters.REWRITERS), help="systems, joined by commas")
    parser.add_argument("--plain-table", action="store_true", help="without segment locks")
    add_surroundings(parser)
    args = parser.parse_args()
    if args.files < 2 * max(SHAPES[shape] for shape in args.shapes.split(",")):
        parser.error("--files: a time chunk of fewer than two files leaves nothing to compact")
    end_properly()
    print(machine(), flush=True)
    folder = Path(tempfile.mkdtemp(prefix="compaction-", dir=args.folder))
    results: Results = {}
    inputs: dict[str, Input] = {}
    try:
        with surroundings(folder, args.store, args.servers) as around:
            for shape in args.shapes.split(","):
                source = make_input(folder / f"input-{shape}", args.files, args.rows, SHAPES[shape])
                inputs[shape] = source
                setup = rewriters.Setup(source, args.target, around.hosts, around.place, shape, not args.plain_table)
                results |= {(shape, name): found for name, found in _measure(setup, folder, args).items()}
                print(_table(source, {name: results[shape, name] for name in args.only.split(",")}), flush=True)
    finally:
        shutil.rmtree(folder)
    print("\n".join(["Targets:", *_verdicts(inputs, results)]))
    one = next(iter(inputs.values()))
    kind = "Plain table." if args.plain_table else "The table has segment locks; a lock of each chunk is taken."
    print(NOTES.format(files=args.files, columns=one.columns, input_mb=one.bytes / 1e6, table=kind))


def _measure(setup: rewriters.Setup, folder: Path, args: argparse.Namespace) -> dict[str, list[Done]]:
    """A first round for each system, then the measured ones, in an order that turns."""
    names = args.only.split(",")
    found: dict[str, list[Done]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        crew = {name: stack.enter_context(_process(name, setup, folder / f"{setup.shape}-{name}")) for name in names}
        for number in range(args.rounds + 1):
            for at in range(len(names)):
                name = names[(at + number) % len(names)]
                found[name].append(_ask(crew[name], number))
    return found


@contextlib.contextmanager
def _process(name: str, setup: rewriters.Setup, folder: Path) -> Iterator[Connection]:
    """A process that has opened one system and runs a round for each number it is sent."""
    folder.mkdir()
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(name, setup, folder, there))
    process.start()
    there.close()
    try:
        assert _reply(here) == "ready"
        yield here
    finally:
        with contextlib.suppress(OSError):
            here.send(None)
        process.join(60)
        if process.is_alive():
            process.terminate()
        shutil.rmtree(folder)


def _serve(name: str, setup: rewriters.Setup, folder: Path, pipe: Connection) -> None:
    end_properly()
    try:
        with rewriters.REWRITERS[name](setup, folder) as rewrite:
            pipe.send("ready")
            while (number := pipe.recv()) is not None:
                pipe.send(rewrite(number))
    except Exception as error:
        pipe.send(error)


def _ask(pipe: Connection, number: int) -> Done:
    pipe.send(number)
    done = _reply(pipe)
    assert isinstance(done, Done)
    return done


def _reply(pipe: Connection) -> Any:
    if not pipe.poll(WAIT_S):
        raise TimeoutError(f"no answer for {WAIT_S:.0f} s")
    answer = pipe.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def middle(rounds: list[Done]) -> Done:
    """Medians of the measured rounds; what was made as in the last one."""
    return dataclasses.replace(
        rounds[-1],
        seconds=median([one.seconds for one in rounds[1:]]),
        cpu=median([one.cpu for one in rounds[1:]]),
        peak=int(median([one.peak for one in rounds[1:]])),
    )


def _table(source: Input, results: dict[str, list[Done]]) -> str:
    head = ["", "first s", "seconds", "rounds", "CPU s", "peak MB", "files", "MB", "rows", "sorted", "to delta-rs"]
    delta = middle(results["delta-rs"]).seconds if "delta-rs" in results else None
    rows = []
    for name, rounds in results.items():
        one = middle(rounds)
        each = " ".join(f"{done.seconds:.2f}" for done in rounds[1:])
        ratio = "-" if delta is None else f"{one.seconds / delta:.2f}"
        cells = [f"{rounds[0].seconds:.2f}", f"{one.seconds:.2f}", each, f"{one.cpu:.2f}", f"{one.peak / 1e6:,.0f}"]
        rows.append(
            [name, *cells, f"{one.files:,}", f"{one.bytes / 1e6:.0f}", f"{one.rows:,} ok", one.order, ratio]
        )  # `rows` were compared with the input's when the round ended
    days = f"{source.days} time chunk{'s' if source.days > 1 else ''}"
    at = datetime.datetime.now(datetime.UTC).strftime("%H:%M")
    title = f"\n{len(source.files):,} files, {source.rows:,} rows, {days} ({at} UTC; {machine()})"
    return f"{title}\n{table(head, rows)}"


def _verdicts(inputs: dict[str, Input], results: Results) -> Iterator[str]:
    for shape, source in inputs.items():
        where = f", {source.days} chunks"
        found = {name: middle(rounds).seconds * 1000 for (of, name), rounds in results.items() if of == shape}
        if {"segments", "delta-rs"} <= found.keys():
            text = f" (1.5 x delta-rs, {show(found['delta-rs'])} ms){where}"
            yield verdict("compaction", found["segments"], 1.5 * found["delta-rs"], where=text)
        if {"segments", "spark"} <= found.keys():
            text = f" (a third of plain Spark, {show(found['spark'])} ms){where}"
            yield verdict("compaction", found["segments"], found["spark"] / 3, where=text)


if __name__ == "__main__":
    main()
