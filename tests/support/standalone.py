"""A whole Airflow: scheduler, API server, DAG processor, triggerer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from airflow_provider_segments.dev.zookeeper import free_port

REPOSITORY = Path(__file__).parents[2]
PARTS = ("scheduler", "triggerer", "dag_processor")
START_S = 1200
DEFAULT_ROLES = {"admin": "admin"}


@dataclass
class Airflow:
    """A running ``airflow standalone`` and its REST API. The password of each user is its name."""

    url: str
    token: str = ""

    def log_in(self, user: str) -> str:
        """A token of that user."""
        given = {"username": user, "password": user}
        answer = requests.post(f"{self.url}/auth/token", json=given, timeout=30)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the REST API, as the admin."""
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = requests.request(method, f"{self.url}/api/v2{path}", json=body, headers=headers, timeout=30)
        answer.raise_for_status()
        return answer.json()

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Start a run; returns its path in the API."""
        self.call("PATCH", f"/dags/{dag_id}", {"is_paused": False})
        run = self.call("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf or {}})
        return f"/dags/{dag_id}/dagRuns/{run['dag_run_id']}"

    def states(self, run: str) -> dict[str, str | None]:
        """States of a run's tasks."""
        tasks = self.call("GET", f"{run}/taskInstances")["task_instances"]
        return {task["task_id"].removeprefix("replace_segments."): task["state"] for task in tasks}

    def warm_up(self) -> None:
        """Have the API server build the API that tasks call: it does so at the first request, and answers nobody
        meanwhile. On a busy machine that takes longer than the first task waits."""
        requests.get(f"{self.url}/execution/health", timeout=START_S).raise_for_status()

    def is_ready(self, dag_count: int) -> bool:
        """Whether every part is healthy and the DAGs are there."""
        try:
            health = requests.get(f"{self.url}/api/v2/monitor/health", timeout=5).json()
            if not all((health[part] or {}).get("status") == "healthy" for part in PARTS):
                return False
            if not self.token:
                self.warm_up()
                self.token = self.log_in("admin")
            return len(self.call("GET", "/dags")["dags"]) == dag_count
        except (requests.RequestException, KeyError):
            return False


def eventually(true: Callable[[], Any], seconds: float = 90) -> None:
    """Wait until ``true`` says so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.5)


@contextmanager
def standalone(
    home: Path,
    *,
    dags: Path,
    dag_count: int,
    variables: Mapping[str, str],
    roles: Mapping[str, str] | None = None,
) -> Iterator[Airflow]:
    """Run Airflow below ``home`` with the DAGs of a folder. ``roles`` are the users."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    users = roles or DEFAULT_ROLES
    passwords = home / "passwords.json"
    passwords.write_text("{" + ", ".join(f'"{user}": "{user}"' for user in users) + "}")
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in users.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",  # its 5 s are too few for a busy machine
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__API_AUTH__JWT_SECRET": "for-tests-only-" * 5,
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "PYTHONPATH": str(REPOSITORY),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        **variables,
    }
    command = [str(Path(sys.executable).with_name("airflow")), "standalone"]
    log = home / "standalone.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        found = Airflow(url)
        deadline = time.monotonic() + START_S
        while not found.is_ready(dag_count):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(1)
        yield found
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
