"""The page in a real browser, on a real Airflow with an admin, an operator and a viewer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from tests.support.standalone import REPOSITORY, Airflow, standalone
from tests.support.tables import push, stage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
PATIENCE_MS = 600_000
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
        odd = make(opened, "odd_name-with.dots")
        push_rows(odd, [f"s{number}" for number in range(40)], 7)
        push(odd, ["waiting"], end=False)
        dropped = make(opened, "dropped")
        push(dropped, ["d"])
        dropped.drop()
        make(opened, "broken")
        opened.session.commit([_broken(opened)])
        yield opened


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


def make(store: SegmentStore, name: str, kind: str = "APPEND") -> Table:
    document = {
        "tableName": name,
        "segmentsConfig": {"timeColumnName": "ts"},
        "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": kind}},
    }
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
    for name in ("segments_rollback", "segments_unrevert"):
        shutil.copy(REPOSITORY / "dags" / f"{name}.py", dags)
    variables = {"AIRFLOW_CONN_SEGMENTS_DEFAULT": json.dumps(described)}
    with standalone(home, dags=dags, dag_count=2, variables=variables, roles=ROLES) as running:
        for name in ("segments_rollback", "segments_unrevert"):
            running.call("PATCH", f"/dags/{name}", {"is_paused": False})
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    if not CHROMIUM:
        pytest.skip("no chromium is installed: set CHROMIUM to its path")
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

    def close(self) -> None:
        self.context.close()


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
    page = visit.open()
    page.get_by_role("link", name="flights").wait_for()
    row = page.get_by_role("row").filter(has_text="flights")
    assert "336,776" in row.inner_text()
    assert "unreadable" in page.get_by_role("row").filter(has_text="broken").inner_text()
    assert "nothing yet" in page.get_by_role("row").filter(has_text="empty").inner_text()
    kind = "dark" if dark else "phone" if width < 500 else "light"
    page.screenshot(path=pictures / f"tables-{kind}.png")
    page.get_by_role("link", name="odd_name-with.dots").click()
    page.get_by_text("40 segments").first.wait_for()
    page.get_by_role("img", name="Segments by time and size").wait_for()
    page.screenshot(path=pictures / f"table-{kind}.png")
    page.get_by_role("link", name="Operations").click()
    page.get_by_text("To be deleted").wait_for()
    page.screenshot(path=pictures / f"operations-{kind}.png")
    assert not visit.errors
    assert not visit.foreign
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
    page.get_by_text("Done.").wait_for()
    page.screenshot(path=pictures / "rolled-back.png")
    assert table.snapshot().rows == 48_000
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Bring back entry").first.click()
    page.get_by_text("48,000 rows → 336,776 rows").wait_for()
    page.get_by_role("dialog").get_by_role("textbox").fill("flights")
    page.get_by_role("dialog").get_by_role("button", name="Bring back").click()
    page.get_by_text("Done.").wait_for()
    assert table.snapshot().rows == before
    assert not visit.errors
    visit.close()


def test_a_viewer_sees_the_numbers_and_is_refused_the_click(
    browser: Browser, airflow: Airflow, store: SegmentStore, pictures: Path
) -> None:
    before = store.table("flights").snapshot().names
    visit = Visit(browser, airflow, "viewer")
    page = visit.open("#conn=segments_default&table=flights")
    page.get_by_role("button", name="Roll back entry").last.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").or_(dialog.get_by_role("alert")).first.wait_for()
    if dialog.get_by_role("textbox").count():
        dialog.get_by_role("textbox").fill("flights")
        dialog.get_by_role("button", name="Roll back").click()
        dialog.get_by_text("You may not do this").wait_for()
    page.screenshot(path=pictures / "refused.png")
    assert store.table("flights").snapshot().names == before
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
