"""Push a year of flights, push a wrong export over it, roll it back, push again, and free what was replaced; then
append to another table in small pieces and compact it, feed a stream of changes to an upsert table, and compare two
regions of which one has lost an event: real Airflow, Spark, ZooKeeper, real data.

Run it with ``scripts/demo``. Every step but ingestion is a task instance of a DAG run of ``airflow standalone``; the
figures are read back from the table, not from what the tasks say.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet

from airflow_provider_segments.cli.main import main as segments
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from demo import appends, regions, statuses
from demo.airflow import Airflow, DemoFailedError, Standalone
from demo.flights import WRONG_ROWS, write_flights, write_wrong_flights

TABLE = "flights"
PUSH, ROLLBACK = "segments_consistent_push", "segments_rollback"
RETENTION, DELETION = "segments_retention", "segments_ledger_deletion"
COMPACTION = "segments_compaction"
COMPARISON, OTHER = "segments_compare_regions", "segments_other"
ROOT = Path(__file__).resolve().parent.parent
ALL_ROWS = 336_776


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader sees, read from the segments' files themselves."""

    rows: int
    segments: int
    bytes: int
    miles: int


def main() -> int:
    """Run the demo; 0 when everything was seen as it should be."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, _stop)
    work = Path(arguments.folder).absolute()
    shutil.rmtree(work, ignore_errors=True)
    began = time.monotonic()
    try:
        with _world(work, began, s3=arguments.s3) as (airflow, store):
            flights = work / "input" / "flights.csv"
            tell(airflow, store, flights, began)
            _compare_regions(airflow, store, work, began)
            if arguments.keep_ui:
                _keep(airflow)
    except DemoFailedError as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    return 0


def tell(airflow: Airflow, store: SegmentStore, flights: Path, began: float, *, engine: str = "auto") -> None:
    """Push, roll back, push again, free, append, compact and upsert. ``engine`` builds the pushes that are triggered by
    hand; ``began`` is when the clock of the output was 0. Raises :class:`DemoFailedError`."""
    good = _push_and_roll_back(airflow, store, flights, began, engine)
    _push_again(airflow, store, flights, good, began, engine)
    _free(airflow, store, began)
    _segments(store, "lineage", TABLE)
    _append_and_compact(airflow, store, flights, began)
    _upsert(store, flights, began)


def _stop(*_: object) -> None:
    """Being told to end is an exception here, so that all that was started is stopped."""
    sys.exit(128 + signal.SIGTERM)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--keep-ui", action="store_true", help="leave the Airflow UI running until Ctrl-C")
    parser.add_argument("--s3", action="store_true", help="keep the segments in a local S3 server, not in files")
    parser.add_argument("--folder", default=str(ROOT / ".demo"), help="where everything is kept; emptied first")
    return parser.parse_args()


@contextlib.contextmanager
def _world(work: Path, began: float, *, s3: bool) -> Iterator[tuple[Standalone, SegmentStore]]:
    """ZooKeeper, Airflow and the input, all below ``work``; everything that was started is stopped at the end."""
    say(began, "Unpacking the flights of 2013")
    flights = write_flights(work / "input")
    say(began, f"Starting ZooKeeper{', an S3 server' if s3 else ''} and Airflow")
    with EmbeddedZooKeeper(work / "zookeeper") as zookeeper, _storage(work, s3=s3) as (storage, extra):
        connection = {"conn_type": "segments", "host": zookeeper.hosts, "extra": extra}
        there = {**connection, "extra": {**extra, "storage_uri": (work / OTHER).as_uri(), "cluster": OTHER}}
        environment = {
            "AIRFLOW_CONN_SEGMENTS_DEFAULT": json.dumps(connection),
            "AIRFLOW_CONN_SEGMENTS_OTHER": json.dumps(there),
            "SEGMENTS_INPUT": str(flights),
        }
        airflow = Standalone(work / "airflow", ROOT / "dags", environment)
        try:
            airflow.start()
            with SegmentStore.connect(zookeeper.hosts, storage=storage) as store:
                yield airflow, store
        finally:
            airflow.stop()


@contextlib.contextmanager
def _storage(work: Path, *, s3: bool) -> Iterator[tuple[ObjectStore, dict[str, str]]]:
    """The object store, and what an Airflow connection says of it."""
    if not s3:
        uri = (work / "store").as_uri()
        yield open_store(uri), {"storage_uri": uri}
        return
    with S3Server(work / "s3") as server:
        server.create_bucket("demo")
        uri = "s3://demo/tables"
        keys = {"s3_access_key": server.access_key, "s3_secret_key": server.secret_key}
        yield open_store(uri, **server.options), {"storage_uri": uri, "endpoint_url": server.endpoint_url, **keys}


def _push_and_roll_back(airflow: Airflow, store: SegmentStore, flights: Path, began: float, engine: str) -> Seen:
    """What readers see at the end."""
    say(began, "Push 1: the schedule runs the DAG segments_consistent_push on all flights of 2013")
    airflow.unpause(PUSH)
    airflow.unpause(ROLLBACK)
    first = airflow.scheduled_run(PUSH)
    finish(airflow, PUSH, first)
    good = _look(store)
    _report(good, airflow.result(PUSH, first, "push.end"), "the switch")
    expect(good.rows == ALL_ROWS, f"push 1 should show {ALL_ROWS} rows, not {good.rows}")

    say(began, "Push 2: the same DAG, by hand, on an export that went wrong (cut off, distances 0)")
    wrong = write_wrong_flights(flights)
    second = airflow.trigger(PUSH, {"input": str(wrong), "engine": engine})
    finish(airflow, PUSH, second)
    bad = _look(store)
    _report(bad, airflow.result(PUSH, second, "push.end"), "the switch")
    expect((bad.rows, bad.miles) == (WRONG_ROWS, 0), "push 2 should be visible")

    say(began, "Rollback: somebody triggers segments_rollback; first a dry run, then for real")
    dry = airflow.trigger(ROLLBACK, {"table": "flights"})
    finish(airflow, ROLLBACK, dry)
    preview = airflow.result(ROLLBACK, dry, "rollback")
    rows = [f"{preview[when]['rows']:,} rows" for when in ("before", "after")]
    print(f"   dry run: readers see {rows[0]}, and would see {rows[1]}")
    rollback = airflow.trigger(ROLLBACK, {"table": "flights", "dry_run": False})
    finish(airflow, ROLLBACK, rollback)
    after = _look(store)
    _report(after, airflow.result(ROLLBACK, rollback, "rollback"), "the rollback")
    expect(after == good, "the rollback should show exactly what push 1 had shown")
    return good


def _push_again(airflow: Airflow, store: SegmentStore, flights: Path, good: Seen, began: float, engine: str) -> None:
    """The period goes into the table's config: nothing else would let the replaced snapshot go within its day."""
    say(began, "Push 3: the whole export again; the table is told to keep no replaced snapshot (0s instead of a day)")
    config = dict(store.table(TABLE).config().to_json())
    config["segmentsConfig"] = {**config["segmentsConfig"], "replacedSegmentsRetentionPeriod": "0s"}
    third = airflow.trigger(PUSH, {"input": str(flights), "config": config, "engine": engine})
    finish(airflow, PUSH, third)
    again = _look(store)
    _report(again, airflow.result(PUSH, third, "push.end"), "the switch")
    expect((again.rows, again.miles) == (good.rows, good.miles), "push 3 should show what push 1 had shown")


def _free(airflow: Airflow, store: SegmentStore, began: float) -> None:
    say(began, "Deletion: the schedule runs segments_retention, which marks, and segments_ledger_deletion")
    before, seen = _stored(store), _look(store)
    airflow.unpause(RETENTION)
    retention = airflow.scheduled_run(RETENTION)
    finish(airflow, RETENTION, retention)
    marked = airflow.result(RETENTION, retention, "retention")[TABLE]["totals"]
    print(f"   marked: {marked['marked_segments']} segments, {marked['marked_bytes'] / 1e6:.1f} MB")
    airflow.unpause(DELETION)
    deletion = airflow.scheduled_run(DELETION)
    finish(airflow, DELETION, deletion)
    freed = airflow.result(DELETION, deletion, "drain")
    print(f"   deleted: {freed['deleted']} objects, {freed['bytes'] / 1e6:.1f} MB; {freed['in_flight']} in flight")
    after = _stored(store)
    expect(_look(store) == seen, "readers should see what they saw before")
    expect(after == (seen.segments, seen.bytes), f"only what readers see should be left, not {after}")
    print(f"   in the store before: {before[0]} objects, {before[1]:,} bytes")
    print(f"   in the store after:  {after[0]} objects, {after[1]:,} bytes, all of them visible")


def _stored(store: SegmentStore) -> tuple[int, int]:
    """Objects and bytes under the table's prefix, from a listing of the store itself."""
    sizes = [one.bytes for one in store.storage.list(f"{TABLE}/")]
    return len(sizes), sum(sizes)


def finish(airflow: Airflow, dag_id: str, run_id: str) -> None:
    """Wait for the run, print its tasks, and raise :class:`DemoFailedError` unless it was a success."""
    state = airflow.wait_for(dag_id, run_id)
    for task in airflow.tasks(dag_id, run_id):
        took = "" if task["duration"] is None else f"{task['duration']:6.1f} s"
        print(f"   {task['task_id']:<16} {task['state'] or '-':<9} {took}")
    expect(state == "success", f"run {run_id} of {dag_id} ended {state}")


def _look(store: SegmentStore) -> Seen:
    snapshot = store.table(TABLE).snapshot()
    miles = 0
    for key in snapshot.files:
        with snapshot.storage.open(key) as file:
            miles += sum(pyarrow.parquet.read_table(file, columns=["distance"])["distance"].to_pylist())
    return Seen(snapshot.rows, len(snapshot), snapshot.bytes, int(miles))


def _report(seen: Seen, result: dict[str, object], what: str) -> None:
    print(
        f"   visible: {seen.rows:,} rows, {seen.segments} segments, {seen.bytes / 1e6:.1f} MB, "
        f"{seen.miles:,} miles flown; {what} itself took {result['switch_ms']} ms"
    )


def _append_and_compact(airflow: Airflow, store: SegmentStore, flights: Path, began: float) -> None:
    """Pictures of the timeline before and after lie in the demo's folder."""
    pictures = Path(os.path.relpath(flights.parents[1]))
    say(began, f"Appends: the flights of January in {appends.APPENDS} pushes, {appends.PROCESSES} processes at once")
    store.apply_config(appends.config())
    files = appends.write_slices(flights, flights.parent / appends.TABLE)
    seconds, done = appends.append_all(store.session.settings, store.storage, files)
    rows, miles = appends.rows_and_sum(store)
    print(f"   appended: {done} segments, {rows:,} rows, in {seconds:.1f} s, with a lock each")
    _segments(store, "timeline", appends.TABLE, "--svg", str(pictures / "timeline_before.svg"))

    say(began, "Compaction: somebody triggers segments_compaction; one Spark application merges the weeks")
    airflow.unpause(COMPACTION)
    run = airflow.trigger(COMPACTION, {"table": appends.TABLE})
    finish(airflow, COMPACTION, run)
    after = appends.rows_and_sum(store)
    visible = len(store.table(appends.TABLE).snapshot())
    print(f"   visible: {visible} segments in place of {done}; {after[0]:,} rows and {after[1]:,} miles, as before")
    _segments(store, "timeline", appends.TABLE, "--svg", str(pictures / "timeline_after.svg"))
    expect(after == (rows, miles), f"the compaction should show {rows} rows and {miles} miles, not {after}")
    expect(visible < done, "the compaction should leave fewer segments")


def _upsert(store: SegmentStore, flights: Path, began: float) -> None:
    """Ingest the status changes of January into an upsert table, while readers count."""
    say(began, "Upsert: every change of status of the flights of January; two processes read meanwhile")
    seen, ends, reads = statuses.run(store, flights, flights.parent / "upsert_cache")
    expect(dict(seen) == ends, f"the table shows {dict(seen)}, and should show {ends}")
    expect(reads > 0, "nothing was read meanwhile")
    print(f"   in {reads} reads meanwhile there was one row a flight, and none that had been there was gone")
    _segments(store, "upsert", "status", statuses.TABLE)


def _compare_regions(airflow: Airflow, store: SegmentStore, work: Path, began: float) -> None:
    """The same changes in two regions; one alters an event and loses one. They are found, repaired, and agree."""
    say(began, "Regions: the same changes read in two regions; the second one alters an event and loses another")
    hosts, uri = store.session.settings.hosts, (work / OTHER).as_uri()
    airflow.unpause(COMPARISON)
    with SegmentStore.connect(hosts, OTHER, uri) as other:
        regions.make((store, other))
        both = regions.Regions((store, other), work / "regions")
        both.write(work / "input" / "flights.csv")
        both.ingest(with_faults=True)
        differing = both.differing()
        print(f"   readers see different things of: {', '.join(differing)}")
        _segments(store, "heartbeats", regions.TABLE)
        conf = {"table": regions.TABLE, "other_conn_id": OTHER}
        found = airflow.wait_for(COMPARISON, airflow.trigger(COMPARISON, conf))
        expect(found == "failed", f"a comparison that finds something should fail, and ended {found}")
        sources = [part for region in regions.REGIONS for part in ("--source", f"{region}={both.source(region)}")]
        _segments(store, "repair", regions.TABLE, *sources)
        _segments(store, "repair", regions.TABLE, *sources, "--apply")
        both.ingest(with_faults=False)
        expect(not both.differing(), f"after the repair both should agree, and differ in {both.differing()}")
        finish(airflow, COMPARISON, airflow.trigger(COMPARISON, conf))
        print("   after the repair both regions agree, and the comparison says healed")


def _segments(store: SegmentStore, command: str, *arguments: str) -> None:
    """Run a command as a person would type it, and show it."""
    print(f"\n$ segments {command} {' '.join(arguments)}", flush=True)
    where = ["--zookeeper", store.session.settings.hosts, "--storage", store.storage.uri]
    code = segments([command, *arguments, *where])
    expect(code == 0, f"segments {command} ended with {code}")


def _keep(airflow: Standalone) -> None:
    print(f"\nThe Airflow UI is at {airflow.url} until you press Ctrl-C", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def expect(holds: bool, otherwise: str) -> None:
    """Raise :class:`DemoFailedError` with ``otherwise`` unless it ``holds``."""
    if not holds:
        raise DemoFailedError(otherwise)


def say(began: float, what: str) -> None:
    """Print a step with the seconds since ``began``."""
    print(f"\n{time.monotonic() - began:6.1f} s  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
