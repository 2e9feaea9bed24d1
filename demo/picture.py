"""Take the README's picture of the page, with the demo's data.

python -m demo.picture [--file docs/page.png] [--folder .demo]

A real Airflow pushes the flights of 2013, then the export that went wrong, and somebody rolls it back: that is what
the picture shows. It needs Chromium (``CHROMIUM``, or the one on the path) and the extra ``test``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from demo.airflow import DemoFailedError, Standalone
from demo.flights import write_flights, write_wrong_flights

PUSH, ROLLBACK = "segments_consistent_push", "segments_rollback"
ROOT = Path(__file__).resolve().parent.parent
SIZE = {"width": 1180, "height": 760}
PATIENCE_MS = 300_000


def main() -> None:
    """Make the tables, and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=ROOT / "docs" / "page.png", help="where the picture goes")
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo", help="everything else goes here")
    arguments = parser.parse_args()
    work = arguments.folder.absolute()
    shutil.rmtree(work, ignore_errors=True)
    flights = write_flights(work / "input")
    with EmbeddedZooKeeper(work / "zookeeper") as zookeeper:
        extra = {"storage_uri": (work / "store").as_uri()}
        connection = {"conn_type": "segments", "host": zookeeper.hosts, "extra": extra}
        environment = {"AIRFLOW_CONN_SEGMENTS_DEFAULT": json.dumps(connection), "SEGMENTS_INPUT": str(flights)}
        airflow = Standalone(work / "airflow", ROOT / "dags", environment)
        try:
            airflow.start()
            _push_and_roll_back(airflow, flights)
            _take(airflow, arguments.file)
        finally:
            airflow.stop()
    print(f"{arguments.file}: {arguments.file.stat().st_size:,} bytes")


def _push_and_roll_back(airflow: Standalone, flights: Path) -> None:
    for dag_id in (PUSH, ROLLBACK, "segments_retention", "segments_ledger_deletion"):
        airflow.unpause(dag_id)
    _finish(airflow, PUSH, airflow.scheduled_run(PUSH))
    _finish(airflow, PUSH, airflow.trigger(PUSH, {"input": str(write_wrong_flights(flights))}))
    _finish(airflow, ROLLBACK, airflow.trigger(ROLLBACK, {"table": "flights", "dry_run": False}))


def _finish(airflow: Standalone, dag_id: str, run_id: str) -> None:
    state = airflow.wait_for(dag_id, run_id)
    print(f"{dag_id}: {state}", flush=True)
    if state != "success":
        raise DemoFailedError(f"run {run_id} of {dag_id} ended {state}")


def _take(airflow: Standalone, file: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        raise SystemExit("no chromium is installed: set CHROMIUM to its path")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        context.add_cookies([{"name": "_token", "value": airflow.token, "url": airflow.url}])
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{airflow.url}/plugin/segments#conn=segments_default&table=flights")
        page.get_by_text("readers saw 336,776 rows").wait_for()
        page.get_by_role("img", name="Segments by time and size").wait_for()
        page.screenshot(path=file)
        browser.close()


if __name__ == "__main__":
    main()
