"""Every route of the page, in Airflow's own API server: who has no right sees nothing, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.plugins.segments_plugin import PREFIX
from tests.airflow.helpers import REPOSITORY, make_table, push_rows

ROLES = ("viewer", "user", "op", "admin")
PAGE = REPOSITORY / "docs" / "page.md"


def page_routes() -> list[APIRoute]:
    from airflow_provider_segments.plugins.api import app

    return [route for route in app.routes if isinstance(route, APIRoute)]


def path_of(route: APIRoute, table: str = "t", entry_id: str = "e") -> str:
    """A route's path with something in place of its parameters."""
    values = {"conn_id": "segments_default", "table": table, "entry_id": entry_id, "name": "segments.js"}
    return PREFIX + route.path.format(**values) + (f"?before={entry_id}" if route.name == "diff" else "")


@pytest.fixture(scope="module")
def server(airflow_db: None) -> Iterator[TestClient]:
    """The API server, in which people have to log in."""
    from airflow.api_fastapi.app import create_app

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "False")
        with TestClient(create_app(apps="core")) as client:
            yield client


def headers_of(role: str) -> dict[str, str]:
    """What a user of that role sends."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=role, role=role))
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def headers(server: TestClient) -> dict[str, str]:
    assert server
    return headers_of("viewer")


def test_no_route_answers_without_a_token(server: TestClient) -> None:
    """The routes are asked of the application, so that a new one cannot be forgotten."""
    from airflow_provider_segments.plugins.api import app

    routes = page_routes()
    assert len(routes) >= 7
    assert len(routes) == len(app.routes), "a mount or a websocket would go past the check of rights"
    credentials: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": "Basic YWRtaW46YWRtaW4="},
        {"Cookie": "_token=nonsense"},
    ]
    for route in routes:
        assert route.methods == {"GET"}, "nothing is written here"
        for headers in credentials:
            assert server.get(path_of(route), headers=headers).status_code in (401, 403), (route.path, headers)
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert server.request(method, path_of(route)).status_code in (401, 403, 405), (method, route.path)
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert server.get(PREFIX + path).status_code in (401, 403, 404), path


def test_each_role_sees_every_route(
    server: TestClient, connection: dict[str, Any], store: SegmentStore, table_name: str, tmp_path: Path
) -> None:
    """What the roles may do with a DAG is Airflow's to decide; reading is for everyone who may see plugins."""
    assert connection
    entry_id = push_rows(make_table(store, table_name), tmp_path, {"a": [1]})
    print(f"\n{'route':90} {'nobody':>7} " + " ".join(f"{role:>7}" for role in ROLES))
    for route in page_routes():
        path = path_of(route, table_name, entry_id)
        seen = [server.get(path).status_code] + [
            server.get(path, headers=headers_of(role)).status_code for role in ROLES
        ]
        print(f"{PREFIX + route.path:90} {seen[0]:>7} " + " ".join(f"{status:>7}" for status in seen[1:]))
        assert seen == [401, *[200] * len(ROLES)], route.path
        assert f"| `{route.path}` | 401 | 200 | 200 | 200 | 200 |" in PAGE.read_text(), "docs/page.md has this table"


def test_the_page_of_the_routes_is_what_the_application_says(airflow_db: None) -> None:
    """Every answer is typed, but for the script; docs/api.md says how."""
    from demo.api_page import PAGE as API_PAGE
    from demo.api_page import document, render

    openapi = document()
    assert render(openapi) == API_PAGE.read_text(), "run python -m demo.api_page"
    for path, methods in openapi["paths"].items():
        schema = methods["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert "$ref" in schema or path.startswith("/static/"), path


def test_each_route_answers_with_what_is_there(
    server: TestClient,
    headers: dict[str, str],
    connection: dict[str, Any],
    store: SegmentStore,
    table_name: str,
    tmp_path: Path,
) -> None:
    assert connection
    table = make_table(store, table_name)
    first = push_rows(table, tmp_path, {"a": [1, 2]}, identity="tests/dag/run/start")
    second = push_rows(table, tmp_path, {"a": [1, 2, 3]})
    found = {}
    for route in page_routes():
        answer = server.get(path_of(route, table_name, second), headers=headers)
        assert answer.status_code == 200, (route.path, answer.text)
        found[route.name] = answer
    row = next(row for row in found["tables"].json()["tables"] if row["name"] == table_name)
    assert (row["rows"], row["segments"], row["entry_id"], row["error"]) == (3, 1, second, None)
    entries = {entry["entry_id"]: entry for entry in found["table"].json()["entries"]}
    assert entries[first]["by"] == {"identity": "tests/dag/run/start", "dag_id": "dag", "run_id": "run"}
    preview = found["preview"].json()
    assert (preview["rows_before"], preview["rows_after"], preview["refused"]) == (3, 2, None)
    table.revert(second)
    [route] = [route for route in page_routes() if route.name == "preview"]
    back = server.get(path_of(route, table_name, second), headers=headers)
    assert (back.json()["brings_back"], back.json()["rows_after"]) == (True, 3)
    assert "AirflowPlugin" in found["static"].text


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/connections/absent/tables", 404, "no connection"),
        ("/api/connections/segments_default/tables/absent", 404, "absent"),
        ("/api/connections/segments_default/tables/a%2F..%2Fb", 404, ""),
        ("/api/connections/segments_default/tables?limit=0", 422, ""),
        ("/static/..%2Fapi.py", 404, ""),
        ("/static/api.py", 404, "no such file"),
    ],
)
def test_what_is_not_there_is_said_plainly(
    server: TestClient,
    headers: dict[str, str],
    store: SegmentStore,
    table_name: str,
    path: str,
    status: int,
    said: str,
) -> None:
    make_table(store, table_name)
    answer = server.get(PREFIX + path, headers=headers)
    assert (answer.status_code, said in answer.text) == (status, True)
