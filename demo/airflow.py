"""A real ``airflow standalone`` of one's own, and its REST API."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from airflow_provider_segments.dev.zookeeper import free_port

FINISHED = ("success", "failed")
START_S = 900.0
"""How long a component of Airflow may take to begin its work, on a slow machine."""


class DemoFailedError(RuntimeError):
    """A step of the demo did not do what it should."""


class Airflow:
    """The REST API of an Airflow at ``url``, as one user."""

    def __init__(self, url: str, user: str = "", password: str = "") -> None:
        self.url = url
        self._login = {"username": user, "password": password} if user else None

    @cached_property
    def token(self) -> str:
        """What a browser is logged in with, as the cookie ``_token``."""
        method = "POST" if self._login else "GET"
        return str(_request(f"{self.url}/auth/token", method, self._login)["access_token"])

    def is_healthy(self) -> bool:
        """Return True if every component says so."""
        try:
            health = _request(f"{self.url}/api/v2/monitor/health")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all((health.get(part) or {}).get("status") == "healthy" for part in parts)

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run the DAG, as soon as it was parsed."""
        self._wait(f"DAG {dag_id}", lambda: self._exists(f"/dags/{dag_id}"), START_S)
        self.call("PATCH", f"/dags/{dag_id}", {"is_paused": False})

    def scheduled_run(self, dag_id: str, timeout: float = START_S) -> str:
        """Id of the run that the schedule makes once the DAG is unpaused."""
        found: list[str] = []

        def made() -> bool:
            runs = self.call("GET", f"/dags/{dag_id}/dagRuns?run_type=scheduled")["dag_runs"]
            found.extend(run["dag_run_id"] for run in runs)
            return bool(found)

        self._wait(f"the scheduled run of {dag_id}", made, timeout)
        return found[0]

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> str:
        """Trigger a run by hand; returns its id."""
        run = self.call("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})
        return str(run["dag_run_id"])

    def wait_for(self, dag_id: str, run_id: str, timeout: float = 1800) -> str:
        """Wait for the run's end; returns its state."""
        path = f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id, safe='')}"
        state = ""

        def ended() -> bool:
            nonlocal state
            state = str(self.call("GET", path)["state"])
            return state in FINISHED

        self._wait(f"the end of {dag_id} {run_id}", ended, timeout)
        return state

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The run's task instances in the order they started."""
        path = f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id, safe='')}/taskInstances"
        found: list[dict[str, Any]] = self.call("GET", path)["task_instances"]
        return sorted(found, key=lambda task: task["start_date"] or "9")

    def result(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """What a task returned."""
        run = urllib.parse.quote(run_id, safe="")
        path = f"/dags/{dag_id}/dagRuns/{run}/taskInstances/{task_id}/xcomEntries/return_value?deserialize=true"
        value = self.call("GET", path)["value"]
        return value if isinstance(value, dict) else dict(json.loads(value))

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request to the REST API."""
        return _request(f"{self.url}/api/v2{path}", method, body, self.token)

    def _exists(self, path: str) -> bool:
        try:
            self.call("GET", path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            raise
        return True

    def _wait(self, what: str, done: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            self._check_runs()
            if time.monotonic() > deadline:
                raise DemoFailedError(f"waited {timeout:.0f} s for {what}")
            time.sleep(1)  # each look costs the API server some milliseconds

    def _check_runs(self) -> None:
        """Raise :class:`DemoFailedError` if waiting is in vain."""


class Standalone(Airflow):
    """Scheduler, DAG processor, triggerer, API server and UI in one process group, with its home below ``home``."""

    def __init__(self, home: Path, dags: Path, environment: Mapping[str, str]) -> None:
        port = free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        self.home = home
        self._environment = {**os.environ, **_settings(home, dags, self.url, port), **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = START_S) -> Self:
        """Start it and wait until every component is healthy."""
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "standalone.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["airflow", "standalone"],  # noqa: S607 - found on the PATH that scripts/demo has set
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait("Airflow's start", self.is_healthy, timeout)
        return self

    def stop(self) -> None:
        """End the whole process group."""
        process, self._process = self._process, None
        if process is None:
            return
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _check_runs(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise DemoFailedError(f"airflow standalone ended by itself; see {self.home / 'standalone.log'}")


def _settings(home: Path, dags: Path, url: str, port: int) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",  # its 5 s are too few for a busy machine
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def _request(url: str, method: str = "GET", body: Mapping[str, Any] | None = None, token: str = "") -> dict[str, Any]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - our own server
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=300) as reply:
        return dict(json.load(reply))
