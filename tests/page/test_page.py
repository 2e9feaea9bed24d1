"""The page in a real browser, on a real Airflow with an admin, an operator and a viewer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_segments.core.doctor.examine import examine
from airflow_provider_segments.core.doctor.kept import keep_report
from airflow_provider_segments.core.locking.types import LockRequest
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.ledger import LedgerType, OffloadContext
from airflow_provider_segments.core.replication.comparisons import ComparisonRecord, keep_comparison
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from benchmarks.page import write_table
from tests.deletion.support import batch_of
from tests.replication.support import Log, arrow
from tests.support.standalone import REPOSITORY, Airflow, eventually, standalone
from tests.support.tables import DAY_MS, JANUARY_1, push, stage
from tests.upsert.world import upsert_config

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
PATIENCE_MS = 300_000
AXE = REPOSITORY / "ui" / "node_modules" / "axe-core" / "axe.min.js"
STARTED = ("segments_rollback", "segments_unrevert", "segments_dead_letters", "segments_revoke_lock")
"""DAGs that the page starts."""

PAUSED = ("segments_retention", "segments_ledger_deletion")
"""DAGs that the page warns of."""

CHECKED = """
from airflow.sdk import DAG, Param
from airflow_provider_segments.task_groups.replace import replace_segments

params = {"input": Param(type="string"), "fewest": Param(type="integer")}
with DAG("checked", schedule=None, params=params):
    replace_segments(
        group_id="push", table="checked", config={}, input="{{ params.input }}", input_format="csv",
        input_options={"header": "true"}, build={"engine": "local"}, validate={"min_rows": "{{ params.fewest }}"},
    )
"""

ROLES = {"admin": "admin", "op": "op", "viewer": "viewer"}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """A server of this module's own: a test stops it."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), sync=False) as server:
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def store(zookeeper: EmbeddedZooKeeper, home: Path) -> Iterator[SegmentStore]:
    with SegmentStore.connect(zookeeper.hosts, "page", (home / "objects").as_uri()) as opened:
        flights = make(opened, "flights", "REFRESH")
        push_rows(flights, ["f1", "f2"], 24_000)
        push_rows(flights, ["f3", "f4"], 168_388)
        make(opened, "empty")
        one = make(opened, "only_push", "REFRESH")
        push_rows(one, ["o1"], 9)
        make(opened, "accounts", upsert=True)
        make_regions(opened, home)
        odd = make(opened, "odd_name-with.dots")
        week = Interval(JANUARY_1, JANUARY_1 + 7 * DAY_MS)
        odd.locks.acquire(LockRequest(group="airflow/nightly/manual", task="build", interval=week))
        push_rows(odd, [f"s{number}" for number in range(40)], 7)
        push(odd, ["waiting"], end=False)
        give_up(odd, "lost", "stray")
        dropped = make(opened, "dropped")
        push(dropped, ["d"])
        dropped.drop()
        make(opened, "broken")
        opened.session.commit([_broken(opened)])
        keep_report(opened.cluster, examine(opened.cluster))
        yield opened


def give_up(table: Table, *names: str) -> None:
    """Dead letters: deletions of copies in a tiered storage that is not this connection's."""
    nowhere = OffloadContext("s3", "nowhere", "00000000-0000-4000-8000-00000000000f")
    entry_id = "00000000-0000-4000-8000-000000000001"
    store = table.store.replace(deletion=DeletionSettings(reconsume_later_ms=0, max_retry_delete_count=0))
    for name in names:
        batch = batch_of(
            table.name, entry_id, f"{entry_id}:1:build:1", name, ledger_type=LedgerType.OFFLOAD_LEDGER, offload=nowhere
        )
        store.queue.send([batch])
        store.deleter().drain()
    assert store.queue.backlog().dead == len(names)


def has_ended(airflow: Airflow, run: str) -> bool:
    return airflow.call("GET", run)["state"] in ("success", "failed")


def make_regions(store: SegmentStore, folder: Path) -> None:
    """An upsert table that two regions feed: one is heard, one is silent; a comparison has found a key that differs.
    The test takes minutes, and a heartbeat is expected once a day."""
    store.apply_config(upsert_config("status", regions=["eu", "us"], heartbeatInterval="1d"))
    now_ms = time.time_ns() // 1_000_000
    logs = Log("eu", 2), Log("us")
    for number in range(6):
        logs[0].event(f"k{number}", f"v{number}", part=number % 2)
    logs[1].event("k0", "newer", time=2)
    logs[0].beat(now_ms + 30 * DAY_MS)
    logs[1].beat(now_ms - 10 * DAY_MS)
    ingestor = UpsertIngestor(store.table("status"), cache=folder / "cache")
    ingest_to_barriers(ingestor, arrow([row for log in logs for row in log.rows]))
    findings = store.table("status_findings")
    make(store, findings.name)
    entry_id = push(findings, ["found"])
    done = ComparisonRecord(
        other="table 'status' in 'segments_us' at zk.us:2181",
        at_ms=now_ms - 5 * 60_000,
        version=2,
        other_version=7,
        counts={"mismatch": 1, "undecided": 3},
        behind={"us/0": 12},
        findings=findings.name,
        entry_id=entry_id,
    )
    keep_comparison(store.cluster, "status", done)


def _broken(store: SegmentStore) -> object:
    from airflow_provider_segments.core.zookeeper import SetData

    path = store.paths.lineage("broken")
    node = store.session.get(path)
    assert node is not None
    return SetData(path, b"\xff not a record", node.version)


def push_rows(table: Table, names: list[str], rows: int) -> None:
    """A push of segments that say that they have so many rows."""
    entry_id = table.start().entry_id
    stage(table, entry_id, names, rows=rows)
    table.end(entry_id)


def make(store: SegmentStore, name: str, kind: str = "APPEND", *, upsert: bool = False) -> Table:
    document: dict[str, Any] = {
        "tableName": name,
        "segmentsConfig": {"timeColumnName": "ts"},
        "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": kind}},
    }
    if upsert:
        document |= {"upsertConfig": {"mode": "FULL"}, "schema": {"primaryKeyColumns": ["id"]}}
    store.apply_config(TableConfig.from_json(document))
    return store.table(name)


@pytest.fixture(scope="module")
def airflow(home: Path, store: SegmentStore, zookeeper: EmbeddedZooKeeper) -> Iterator[Airflow]:
    described = {
        "conn_type": "segments",
        "host": zookeeper.hosts,
        "extra": {"storage_uri": (home / "objects").as_uri(), "cluster": "page"},
    }
    dags = home / "dags"
    dags.mkdir()
    for name in (*STARTED, *PAUSED):
        shutil.copy(REPOSITORY / "dags" / f"{name}.py", dags)
    variables = {
        "AIRFLOW_CONN_SEGMENTS_DEFAULT": json.dumps(described),
        "AIRFLOW_CONN_TORN": '{"conn_type": "segm',
        "AIRFLOW_CONN_THEIRS": "postgres://user:word@127.0.0.1/x",
    }
    (dags / "checked.py").write_text(CHECKED)
    with standalone(
        home, dags=dags, dag_count=len(STARTED) + len(PAUSED) + 1, variables=variables, roles=ROLES
    ) as running:
        for name in STARTED:
            running.call("PATCH", f"/dags/{name}", {"is_paused": False})
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    if not CHROMIUM:
        pytest.fail("no chromium is installed: set CHROMIUM to its path")
    if not AXE.exists():
        subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=REPOSITORY / "ui", check=True)
    with sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Visit:
    """A browser page of one user, which keeps what went wrong in it."""

    def __init__(self, browser: Browser, airflow: Airflow, user: str, *, dark: bool = False, width: int = 1400) -> None:
        self.airflow = airflow
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self.context.add_cookies([{"name": "_token", "value": airflow.log_in(user), "url": airflow.url}])
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda said: self._listen(said.type, said.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._look_at)

    def _listen(self, kind: str, text: str) -> None:
        """On a busy machine ZooKeeper may not answer within two seconds; the page says so and asks again."""
        if kind == "error" and "status of 503" not in text:
            self.errors.append(text)

    def _look_at(self, request: object) -> None:
        url = str(getattr(request, "url", ""))
        if not url.startswith((self.airflow.url, "data:", "blob:")):
            self.foreign.append(url)

    def open(self, place: str = "") -> Page:
        self.page.goto(f"{self.airflow.url}/plugin/segments{place}")
        return self.page

    def check_access(self, what: str) -> None:
        """Assert that axe-core finds no serious fault in what the page shows."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run('.seg').then(results => results.violations)")
        serious = [
            f"{one['id']} ({one['impact']}): {one['help']}: {[node['html'][:200] for node in one['nodes']][:3]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        print(f"axe-core, {what}: {len(serious)} serious of {len(found)}: {[one['id'] for one in found]}")
        assert not serious, "\n".join(serious)

    def close(self, *, refused: bool = False) -> None:
        """Assert that nothing went wrong, and that no request has left the host. ``refused`` says that Airflow was to
        refuse something: the browser tells of that, too."""
        self.context.close()
        errors = [text for text in self.errors if not (refused and "status of 403" in text)]
        assert not errors
        assert not self.foreign


@pytest.fixture
def pictures(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where screenshots go: SCREENSHOTS, or the test's own folder."""
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    assert request.node
    return folder


@pytest.mark.parametrize(("dark", "width"), [(False, 1400), (True, 1400), (False, 390)], ids=["light", "dark", "phone"])
def test_every_table_is_shown_or_says_why_not(
    browser: Browser, airflow: Airflow, pictures: Path, dark: bool, width: int
) -> None:
    visit = Visit(browser, airflow, "viewer", dark=dark, width=width)
    kind = "dark" if dark else "phone" if width < 500 else "light"
    page = visit.open()
    page.get_by_role("link", name="flights").wait_for()
    assert "336,776" in page.get_by_role("row").filter(has_text="flights").inner_text()
    assert "unreadable" in page.get_by_role("row").filter(has_text="broken").inner_text()
    assert "nothing yet" in page.get_by_role("row").filter(has_text="empty").inner_text()
    assert "version 0" in page.get_by_role("row").filter(has_text="accounts").inner_text()
    page.get_by_text("Connection torn").wait_for()
    assert page.get_by_text("theirs").count() == 0
    page.get_by_text("segments_retention is paused").wait_for()
    page.get_by_text("segments_ledger_deletion is paused").wait_for()
    page.get_by_role("alert").filter(has_text="2 deletions were given up").wait_for()
    page.screenshot(path=pictures / f"tables-{kind}.png")
    visit.check_access("tables")
    page.get_by_role("link", name="odd_name-with.dots").click()
    page.get_by_text("40 segments").first.wait_for()
    page.get_by_role("img", name="Segments by time and size").wait_for()
    page.screenshot(path=pictures / f"table-{kind}.png")
    visit.check_access("table")
    page.get_by_role("link", name="Operations").click()
    page.get_by_text("To be deleted").wait_for()
    page.get_by_text("airflow/nightly/manual").wait_for()
    page.get_by_text("started").first.wait_for()
    doctor = page.get_by_role("region", name="Doctor")
    doctor.get_by_role("row").filter(has_text="SEGMENT_LINEAGE/broken").filter(has_text="unreadable").wait_for()
    page.screenshot(path=pictures / f"operations-{kind}.png")
    doctor.scroll_into_view_if_needed()
    page.screenshot(path=pictures / f"doctor-{kind}.png")
    visit.check_access("operations")
    visit.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_table_tells_its_history(browser: Browser, airflow: Airflow, pictures: Path, dark: bool) -> None:
    """What readers saw after each push, what came and went between two, and the names behind the numbers."""
    visit = Visit(browser, airflow, "viewer", dark=dark)
    page = visit.open("#conn=segments_default&table=flights")
    page.get_by_text("readers saw 336,776 rows").wait_for()
    page.get_by_text("readers saw 48,000 rows").wait_for()
    for name in ("Compare two entries", "List of segments", "Audit trail", "Config", "Storage over time"):
        page.get_by_text(name, exact=True).click()
    page.get_by_text("From and to").first.click()
    page.get_by_text("48,000 rows → 336,776 rows").wait_for()
    page.get_by_text("+ 2 segments").wait_for()
    page.get_by_text("\N{MINUS SIGN} 2 segments").wait_for()
    page.get_by_role("region", name="Segments", exact=True).get_by_text("f3", exact=True).wait_for()
    page.get_by_role("region", name="Audit trail").get_by_text("ended").first.wait_for()
    page.get_by_text("segmentIngestionType").wait_for()
    page.get_by_role("img", name="Storage over time").locator("g").last.hover()
    page.get_by_text("4 B visible (336,776 rows), 4 B kept besides").wait_for()
    page.screenshot(path=pictures / f"history-{'dark' if dark else 'light'}.png")
    page.locator(".seg").evaluate("seg => { seg.scrollTop = 700; }")
    page.screenshot(path=pictures / f"history-below-{'dark' if dark else 'light'}.png")
    visit.check_access("table")
    visit.close()


def test_the_picture_is_filtered_by_time_and_shows_the_past(browser: Browser, airflow: Airflow, pictures: Path) -> None:
    """The bar under the pointer is told; a click or a drag shows its time only, and so do the buttons and the dates."""
    visit = Visit(browser, airflow, "viewer")
    page = visit.open("#conn=segments_default&table=flights")
    section = page.get_by_role("region", name="Segments by time")
    section.get_by_text("4 segments", exact=True).wait_for()
    bars = section.get_by_role("img", name="Segments by time and size").locator("g")
    bars.first.hover()
    told = "2013-01-01: 1 segment overshadowed (24,000 rows, 2 B), 1 segment visible (168,388 rows, 2 B)"
    section.get_by_text(told).wait_for()
    page.screenshot(path=pictures / "hover.png")
    bars.first.click()
    section.get_by_text("2 segments", exact=True).wait_for()
    assert section.get_by_label("From").input_value() == "2013-01-01"
    assert section.get_by_label("Before").input_value() == "2013-01-02"
    section.get_by_role("button", name="Zoom out").click()
    section.get_by_text("4 segments", exact=True).wait_for()
    bars.first.drag_to(bars.last)
    section.get_by_text("4 segments", exact=True).wait_for()
    section.get_by_label("From").fill("2013-01-02")
    section.get_by_text("2 segments", exact=True).wait_for()
    section.get_by_role("button", name="All time").click()
    section.get_by_text("4 segments", exact=True).wait_for()
    section.get_by_label("As readers saw them").select_option(index=2)
    section.get_by_text("2 segments", exact=True).wait_for()
    section.get_by_text("List of segments").click()
    section.get_by_role("row", name="f1 visible").wait_for()
    visit.close()


def test_an_empty_a_broken_and_a_dropped_table_say_so(browser: Browser, airflow: Airflow, pictures: Path) -> None:
    visit = Visit(browser, airflow, "viewer")
    for table, said in (
        ("empty", "Nothing was pushed yet."),
        ("dropped", "The table was dropped."),
        ("broken", "SEGMENT_LINEAGE/broken"),
    ):
        visit.open(f"#conn=segments_default&table={table}").get_by_text(said).first.wait_for()
        visit.page.screenshot(path=pictures / f"{table}-table.png")
        visit.check_access(table)
        visit.page.goto("about:blank")
    visit.errors = [text for text in visit.errors if "status of 500" not in text]  # the browser tells of the broken one
    visit.close()


@pytest.mark.parametrize(("dark", "width"), [(False, 1400), (True, 1400), (False, 390)], ids=["light", "dark", "phone"])
def test_a_silent_region_and_a_divergence_are_told_before_anything_else(
    browser: Browser, airflow: Airflow, pictures: Path, dark: bool, width: int
) -> None:
    """The banner on the list leads to the regions; the table's own page has them beside its mark and its versions."""
    visit = Visit(browser, airflow, "viewer", dark=dark, width=width)
    kind = "dark" if dark else "phone" if width < 500 else "light"
    page = visit.open()
    banner = page.get_by_role("alert").filter(has_text="Table status: region us is silent, last heard")
    banner.wait_for()
    page.get_by_role("alert").filter(has_text="Table status differs from the one of another region").wait_for()
    banner.get_by_role("link", name="Regions").click()
    card = page.get_by_role("region", name="Regions of status").first
    card.get_by_text("clock ahead").wait_for()
    assert "silent" in card.get_by_role("row").filter(has_text="us").first.inner_text()
    card.get_by_text("12 offsets behind another region").wait_for()
    card.get_by_text("mismatch: 1, undecided: 3").wait_for()
    card.get_by_text("diverged", exact=True).wait_for()
    page.screenshot(path=pictures / f"regions-{kind}.png")
    visit.check_access("regions")
    card.get_by_role("link", name="status", exact=True).click()
    page.get_by_role("heading", name="Readers with copies").wait_for()
    page.get_by_role("region", name="Regions of status").get_by_text("silent").wait_for()
    page.get_by_text("eu/0: 4, eu/1: 4, us/0: 2").wait_for()
    page.screenshot(path=pictures / f"upsert-{kind}.png")
    page.get_by_role("heading", name="Regions").scroll_into_view_if_needed()
    page.screenshot(path=pictures / f"upsert-below-{kind}.png")
    visit.check_access("upsert table")
    page.get_by_role("link", name="status_findings").click()
    page.get_by_role("heading", name="Segments / status_findings").wait_for()
    visit.close()


def test_a_rollback_that_would_empty_a_table_says_so_in_red(
    browser: Browser, airflow: Airflow, store: SegmentStore, pictures: Path
) -> None:
    visit = Visit(browser, airflow, "op")
    page = visit.open("#conn=segments_default&table=only_push")
    page.get_by_role("button", name="Roll back entry").click()
    page.get_by_text("9 rows → 0 rows").wait_for()
    page.get_by_text("The table would be EMPTY.").wait_for()
    page.screenshot(path=pictures / "empty.png")
    visit.check_access("dialog")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert store.table("only_push").snapshot().rows == 9
    visit.close()


def test_a_push_is_rolled_back_and_brought_back_by_clicking(
    browser: Browser, airflow: Airflow, store: SegmentStore, pictures: Path
) -> None:
    table = store.table("flights")
    before = table.snapshot().rows
    visit = Visit(browser, airflow, "op")
    page = visit.open("#conn=segments_default&table=flights")
    page.get_by_role("button", name="Roll back entry").first.click()
    page.get_by_text("336,776 rows → 48,000 rows").wait_for()
    button = page.get_by_role("dialog").get_by_role("button", name="Roll back")
    assert button.is_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("flights")
    page.screenshot(path=pictures / "rollback.png")
    button.click()
    page.get_by_role("link", name="Look at the run").wait_for()
    page.screenshot(path=pictures / "rolling-back.png")
    page.get_by_text("Done:").wait_for()
    page.screenshot(path=pictures / "rolled-back.png")
    assert table.snapshot().rows == 48_000
    run = page.get_by_role("link", name="Look at the run").get_attribute("href") or ""
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Bring back entry").first.click()
    page.get_by_text("48,000 rows → 336,776 rows").wait_for()
    page.get_by_role("dialog").get_by_role("textbox").fill("flights")
    page.get_by_role("dialog").get_by_role("button", name="Bring back").click()
    page.get_by_text("Done:").wait_for()
    assert table.snapshot().rows == before
    page.goto(f"{run}/plugin/segments-run")
    page.get_by_text("Visible now.").wait_for()
    page.screenshot(path=pictures / "run-tab.png")
    visit.check_access("run tab")
    page.goto(f"{run}/tasks/rollback/plugin/segments-task")
    page.get_by_text("Visible now.").wait_for()
    task = run.partition("/dags/")[2].replace("/runs/", "/dagRuns/")
    links = airflow.call("GET", f"/dags/{task}/taskInstances/rollback/links")["extra_links"]
    page.goto(links["Segments table"])
    page.get_by_text("readers saw 336,776 rows").wait_for()
    visit.close()


def test_a_viewer_sees_the_numbers_and_is_refused_the_click(
    browser: Browser, airflow: Airflow, store: SegmentStore, pictures: Path
) -> None:
    before = store.table("flights").snapshot().names
    visit = Visit(browser, airflow, "viewer")
    page = visit.open("#conn=segments_default&table=flights")
    page.get_by_role("button", name="Roll back entry").last.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("revert refused").wait_for()  # the newer push builds on this one
    assert dialog.get_by_role("textbox").count() == 0
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Roll back entry").first.click()
    dialog.get_by_role("textbox").fill("flights")
    dialog.get_by_role("button", name="Roll back").click()
    dialog.get_by_text("You may not do this").wait_for()
    page.screenshot(path=pictures / "refused.png")
    assert store.table("flights").snapshot().names == before
    visit.close(refused=True)


def test_dead_letters_are_redriven_and_purged_by_clicking(
    browser: Browser, airflow: Airflow, store: SegmentStore, pictures: Path
) -> None:
    visit = Visit(browser, airflow, "op")
    page = visit.open("#conn=segments_default&view=operations")
    page.get_by_role("alert").filter(has_text="2 deletions were given up").wait_for()
    page.get_by_role("button", name="Redrive all 2 of this list").wait_for()
    page.screenshot(path=pictures / "dead-letters.png")
    page.get_by_role("button", name="Purge").first.click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_role("button", name="Purge").is_disabled()
    dialog.get_by_role("textbox").fill("purge")
    page.screenshot(path=pictures / "purge.png")
    visit.check_access("purge")
    dialog.get_by_role("button", name="Purge").click()
    dialog.get_by_text("Done: they are forgotten.").wait_for()
    assert (store.queue.backlog().dead, store.queue.backlog().in_flight) == (1, 0)
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("alert").filter(has_text="1 deletion was given up").wait_for()
    page.get_by_role("button", name="Redrive").first.click()
    dialog.get_by_role("button", name="Redrive").click()
    dialog.get_by_text("Done: they will be delivered again.").wait_for()
    assert (store.queue.backlog().dead, store.queue.backlog().in_flight) == (0, 1)
    visit.close()


def test_a_lock_is_revoked_by_clicking_and_a_viewer_is_refused(
    browser: Browser, airflow: Airflow, store: SegmentStore, pictures: Path
) -> None:
    [lock] = store.table("odd_name-with.dots").locks.locks()
    for user, said in (("viewer", "You may not do this"), ("op", "Done: what relies on it")):
        visit = Visit(browser, airflow, user)
        page = visit.open("#conn=segments_default&view=operations")
        page.get_by_role("button", name=f"Revoke lock {lock.lock_id[:8]}").click()
        dialog = page.get_by_role("dialog")
        assert dialog.get_by_role("button", name="Revoke").is_disabled()
        dialog.get_by_role("textbox").fill("odd_name-with.dots")
        dialog.get_by_role("button", name="Revoke").click()
        dialog.get_by_text(said).wait_for()
        [after] = store.table("odd_name-with.dots").locks.locks()
        assert after.active is (user == "viewer")
        page.screenshot(path=pictures / f"revoke-{user}.png")
        visit.check_access("revoke")
        visit.close(refused=user == "viewer")
    assert after.revoked is not None and "segments_revoke_lock" in after.revoked.by


def test_the_tab_of_a_push_shows_its_checks(
    browser: Browser, airflow: Airflow, store: SegmentStore, home: Path, pictures: Path
) -> None:
    """Of a push that passed, and of one that failed and was reverted: on the run's tab and on the task's."""
    (home / "rows.csv").write_text("a,ts\n1,2013-01-01T00:00:00Z\n2,2013-01-01T01:00:00Z\n")
    visit = Visit(browser, airflow, "viewer")
    for fewest, state, said in ((2, "success", "2 checks passed"), (3, "failed", "1 of 2 checks failed")):
        run = airflow.trigger("checked", {"input": str(home / "rows.csv"), "fewest": fewest})
        eventually(partial(has_ended, airflow, run), 300)
        assert airflow.call("GET", run)["state"] == state, airflow.states(run)
        place = run.replace("/dagRuns/", "/runs/")
        for below in ("plugin/segments-run", "tasks/push.validate/plugin/segments-task"):
            visit.page.goto(f"{airflow.url}{place}/{below}")
            visit.page.get_by_text(said).wait_for()
            visit.page.get_by_text("Visible now." if state == "success" else "Rolled back").wait_for()
        visit.page.get_by_role("region", name="List of checks").get_by_text(f"at least {fewest}").wait_for()
        visit.page.screenshot(path=pictures / f"checks-{state}.png")
        visit.check_access("checks")
    assert store.table("checked").snapshot().rows == 2
    page = visit.open("#conn=segments_default")
    page.get_by_role("row").filter(has_text="checked").get_by_text("a later push failed").wait_for()
    page.get_by_role("link", name="checked", exact=True).click()
    page.get_by_text("Checks and note").last.click()
    page.get_by_text("2 checks passed").wait_for()
    page.get_by_text("The run has no note.").wait_for()
    page.screenshot(path=pictures / "checks-of-an-entry.png")
    visit.close()


def test_a_table_of_10000_entries_and_100000_segments(
    browser: Browser, airflow: Airflow, store: SegmentStore, pictures: Path
) -> None:
    """It is paged; what readers saw after each push is computed when somebody asks for it, for all of a page."""
    write_table(store, "large", 10_000, 10)
    visit = Visit(browser, airflow, "viewer")
    page = visit.open("#conn=segments_default&table=large")
    page.get_by_text("100,000,000").first.wait_for()
    page.get_by_text("of 10,000", exact=False).first.wait_for()
    page.get_by_text("100,000 segments; neighbouring time chunks are drawn as one").wait_for()
    assert page.locator(".seg-log").get_by_text("readers saw").count() == 0
    page.screenshot(path=pictures / "large.png")
    page.get_by_role("button", name="Compute what readers saw").click()
    page.wait_for_function("document.querySelectorAll('.seg-log > li').length === 50")
    every = "[...document.querySelectorAll('.seg-log > li')].every(li => li.innerText.includes('readers saw'))"
    page.wait_for_function(every)
    page.get_by_text("List of segments").click()
    page.get_by_text("of 100,000").wait_for()
    page.screenshot(path=pictures / "large-computed.png")
    visit.check_access("large table")
    visit.close()


def test_a_dead_zookeeper_is_a_message_within_seconds(
    browser: Browser, airflow: Airflow, zookeeper: EmbeddedZooKeeper, pictures: Path
) -> None:
    """The last test of the module: the server comes back, and the page with it."""
    visit = Visit(browser, airflow, "viewer")
    page = visit.open()
    page.get_by_role("link", name="flights").wait_for()
    zookeeper.stop()
    page = visit.open()
    page.get_by_role("alert").filter(has_text="ZooKeeper").wait_for()
    page.screenshot(path=pictures / "dead-zookeeper.png")
    zookeeper.start()
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("link", name="flights").wait_for()
    visit.close()
