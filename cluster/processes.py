"""The processes of a topology: started, looked at, killed and ended, each by its id.

Every process gets the variable ``SEGMENTS_CLUSTER_SERVICE``, and hands it on to its children. So whatever a service has
started belongs to it, as in a container, also after its first process was killed.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil  # type: ignore[import-untyped]

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.spark.environment import spark_home
from cluster.compose import DOCKER, ROOT, Service, Topology
from demo.airflow import Airflow, DemoFailedError

if TYPE_CHECKING:
    from airflow_provider_segments.hooks.settings import SegmentsConnection

START_S = 600.0
"""How long a service may take to become healthy, on a slow machine."""

_MARK = "SEGMENTS_CLUSTER_SERVICE"
_INHERITED = ("JAVA_HOME", "LANG", "LC_ALL")
_SMALL = {
    "SPARK_DAEMON_MEMORY": "256m",
    "JDK_JAVA_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "OMP_NUM_THREADS": "1",
}
_POSTGRES = ("-c", "unix_socket_directories=", "-c", "fsync=on")
_ADDED_LINES = {"zoo.cfg": "secureClientPortAddress={host}\n"}
"""In a container, all addresses are its own."""

_ASKED_AS_A_WHOLE = frozenset({"airflow-dag-processor", "airflow-triggerer"})
"""Their checks start an Airflow each, and look for a host's name; the API server knows their state, too."""


class Cluster:
    """The topology with everything it keeps below ``folder``. A second object on the folder finds what the first one
    has started. Use :meth:`up` and :meth:`down`, or ``with``. ``settings`` are more variables for Airflow."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder.absolute()
        self._settings = settings or {}
        self.topology = Topology(self.folder, _network(self.folder))

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def services(self) -> Mapping[str, Service]:
        """Every service by name, each after those it needs."""
        return self.topology.services

    def up(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Start what does not run, and wait until everything is healthy. Raises :class:`DemoFailedError`."""
        for script in ("kafka-jars", "s3a-jars"):
            subprocess.run([ROOT / "scripts" / script], check=True)
        self.make_secrets()
        for name, service in self.services.items():
            for needed in service.needs:
                self.wait_healthy(needed)
            if not self.is_running(name):
                say(f"starting {name} at {service.host}")
                self.start(name)
        for name in self.services:
            self.wait_healthy(name)
        self._wait("Airflow's components", self.airflow().is_healthy)

    def down(self) -> None:
        """End everything, the newest first: politely, then by force."""
        for name in reversed(list(self.services)):
            self._signal(name, signal.SIGCONT)
            self._signal(name, signal.SIGTERM)
        psutil.wait_procs(self.all_processes(), timeout=20)
        while left := self.all_processes():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=10)

    def start(self, name: str) -> None:
        """Start a service; does not wait for it, unless it runs to its end as ``airflow-init`` does."""
        service = self.services[name]
        for folder in (service.folder / "tmp", *service.volumes):
            folder.mkdir(parents=True, exist_ok=True)
        for path, text in service.files.items():
            path.write_text(text + _ADDED_LINES.get(path.name, "").format(host=service.host))
        environment = self._environment(service)
        command = self._command(service, environment)
        with (service.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=service.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        (service.folder / "pid").write_text(json.dumps([process.pid, psutil.Process(process.pid).create_time()]))
        _started.append(process)

    def is_running(self, name: str) -> bool:
        """Return True if the first process of the service runs, or its work is done."""
        if self._is_done(name):
            return True
        try:
            pid, born = json.loads((self.services[name].folder / "pid").read_text())
            process = psutil.Process(pid)
            return bool(process.create_time() == born and process.status() != psutil.STATUS_ZOMBIE)
        except (FileNotFoundError, psutil.NoSuchProcess):
            return False

    def processes(self, name: str) -> list[psutil.Process]:
        """What runs for the service now: its first process, and what descends from that."""
        mark = f"{self.folder}/{name}"
        return [one for one in psutil.process_iter() if _mark_of(one) == mark]

    def kill(self, name: str) -> int:
        """Kill -9 all of a service, as a machine that is switched off; returns how many processes that were."""
        return self._signal(name, signal.SIGKILL)

    def end(self, name: str) -> None:
        """End a service as its container engine would: politely, and by force if that takes too long."""
        self._signal(name, signal.SIGTERM)
        _, left = psutil.wait_procs(self.processes(name), timeout=20)
        if left:
            self.kill(name)
            psutil.wait_procs(left, timeout=10)

    def freeze(self, name: str) -> int:
        """Stop all of a service where it is: nothing answers and no connection breaks, as with a cut cable."""
        return self._signal(name, signal.SIGSTOP)

    def thaw(self, name: str) -> int:
        """Let a frozen service go on."""
        return self._signal(name, signal.SIGCONT)

    def wait_healthy(self, name: str, timeout: float = START_S) -> None:
        """Wait for the health check of the compose file. Raises :class:`DemoFailedError`."""

        def healthy() -> bool:
            if not self.is_running(name):
                raise DemoFailedError(f"{name} ended by itself; see {self.services[name].folder / 'log'}")
            return self.is_healthy(name)

        self._wait(name, healthy, timeout)

    def is_healthy(self, name: str) -> bool:
        """Run the health check of the compose file, or look whether a service has done its work."""
        service = self.services[name]
        if not service.check:
            return self._is_done(name)
        if name in _ASKED_AS_A_WHOLE:
            return self.is_running(name)
        environment = self._environment(service)
        environment.pop(_MARK)
        done = subprocess.run(
            service.check, env=environment, cwd=service.folder, capture_output=True, check=False, timeout=120
        )
        return done.returncode == 0

    def airflow(self) -> Airflow:
        """Airflow's REST API, as the admin."""
        password = json.loads((self.topology.secrets / "airflow_passwords.json").read_text())["admin"]
        host = self.services["airflow-api-server"].host
        return Airflow(f"http://{host}:8080", "admin", password)

    @property
    def input(self) -> Path:
        """The folder that Airflow's workers and Spark's share, for inputs."""
        return self.folder / "volumes" / "input"

    @property
    def spark_url(self) -> str:
        """For ``--master``."""
        return f"spark://{self.services['spark-master'].host}:7077"

    def store(self, conn_id: str = "segments_default") -> SegmentStore:
        """The segments, as a connection of Airflow describes them."""
        return self._connection(conn_id).connect()

    def store_environment(self) -> dict[str, str]:
        """Variables that describe the store to a job or to the command ``segments``, credentials among them."""
        settings = self._connection()
        where = {"SEGMENTS_ZOOKEEPER": settings.zk_hosts, "SEGMENTS_STORAGE": settings.storage_uri}
        return {**settings.environment(), **where}

    @contextmanager
    def connected(self) -> Iterator[SegmentStore]:
        """The store, with its credentials in this process's environment: commands take them from there."""
        os.environ.update(self.store_environment())
        with self.store() as store:
            yield store

    def secrets(self) -> dict[str, str]:
        """Name and text of each password and key."""
        folder = self.topology.secrets
        plain = ("postgres_password", "redis_password", "zookeeper_password", "s3_secret_key", "airflow_jwt_secret")
        made = {name: (folder / name).read_text() for name in (*plain, "airflow_secret_key", "airflow_fernet_key")}
        return {**made, **json.loads((folder / "airflow_passwords.json").read_text())}

    def environment(self, name: str) -> dict[str, str]:
        """The environment that the service runs with, for a process beside it that belongs to it, too."""
        return self._environment(self.services[name])

    def _connection(self, conn_id: str = "segments_default") -> SegmentsConnection:
        from airflow.secrets.local_filesystem import load_connections_dict

        from airflow_provider_segments.hooks.settings import SegmentsConnection

        connections = load_connections_dict(str(self.topology.secrets / "airflow_connections.json"))
        return SegmentsConnection.parse(connections[conn_id])

    def make_secrets(self) -> None:
        """By the script for containers; addresses take the place of names in what it has written."""
        folder = self.topology.secrets
        ensemble = [service.host for name, service in self.services.items() if name.startswith("zookeeper-")]
        subprocess.run([DOCKER / "make-secrets", folder, *ensemble], check=True)
        for path in folder.glob("airflow_*"):
            text = self.topology.with_addresses(path.read_text()).replace("/run/secrets", str(folder))
            path.write_text(text)

    def _environment(self, service: Service) -> dict[str, str]:
        programs = [Path(sys.executable).parent, spark_home() / "bin", *_postgres_folders()]
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return {
            **inherited,
            "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "HOME": str(service.folder),
            "TMPDIR": str(service.folder / "tmp"),
            "SPARK_LOCAL_DIRS": str(service.folder / "tmp"),
            "SPARK_LOCAL_IP": service.host,
            "NO_PROXY": ",".join(self.topology.hosts.values()),
            **_SMALL,
            **(self._of_airflow() if service.image == "segments-airflow" else {}),
            **service.environment,
            **(self._settings if service.image == "segments-airflow" else {}),
            "SPT_NOENV": "1",  # else celery and Airflow write their titles over what the mark is in
            _MARK: f"{self.folder}/{service.name}",
        }

    def _of_airflow(self) -> dict[str, str]:
        """Addresses to listen on, and one folder of logs: the workers' servers of logs would all listen on one port."""
        hosts = self.topology.hosts
        return {
            "AIRFLOW__API__HOST": hosts["airflow-api-server"],
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST": hosts["airflow-scheduler"],
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
        }

    def _command(self, service: Service, environment: Mapping[str, str]) -> list[str]:
        """What the entry points of foreign images would do, for their services."""
        if service.image == "kafka":
            return _kafka(service, environment)
        if service.image == "postgres":
            return _postgres(service, environment)
        command = list(service.command)
        if service.name.startswith("airflow-worker"):
            command[-1] += " --skip-serve-logs"
        if service.name == "airflow-triggerer":
            command.append("--skip-serve-logs")
        return command if service.check else ["sh", "-c", f"{shlex.join(command)} && touch done"]

    def all_processes(self) -> list[psutil.Process]:
        """Everything that runs for the cluster now."""
        return [process for process in psutil.process_iter() if _mark_of(process).startswith(f"{self.folder}/")]

    def _is_done(self, name: str) -> bool:
        return not self.services[name].check and (self.services[name].folder / "done").exists()

    def _signal(self, name: str, number: signal.Signals) -> int:
        processes = self.processes(name)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return len(processes)

    def _wait(self, what: str, done: Callable[[], bool], timeout: float = START_S) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            if time.monotonic() > deadline:
                raise DemoFailedError(f"waited {timeout:.0f} s for {what}; the logs are {self.folder}/*/log")
            time.sleep(0.5)


_started: list[subprocess.Popen[bytes]] = []
"""Kept so that Python collects them when they end."""


def _network(folder: Path) -> str:
    """Three numbers of a loopback network that is this folder's from its first use on."""
    kept = folder / "network"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(254) + 1}")
    return kept.read_text()


def _mark_of(process: psutil.Process) -> str:
    """Nothing for what has ended, or belongs to another user."""
    try:
        return str(process.environ().get(_MARK, ""))
    except (psutil.Error, OSError):
        return ""


def _kafka(service: Service, environment: Mapping[str, str]) -> list[str]:
    """``KAFKA_LOG_DIRS`` becomes ``log.dirs`` of its configuration; its folder is formatted once."""
    config = service.folder / "server.properties"
    settings = {name.removeprefix("KAFKA_"): value for name, value in environment.items() if name.startswith("KAFKA_")}
    config.write_text("".join(f"{name.replace('_', '.').lower()}={value}\n" for name, value in settings.items()))
    java = ["java", "-Xmx256m", "-cp", str(ROOT / ".kafka" / "broker" / "*")]
    if not any(service.volumes[0].iterdir()):
        identity = "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=22))  # noqa: S311 - a name
        format_it = [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(config)]
        subprocess.run(format_it, env=dict(environment), check=True, capture_output=True, timeout=120)
    return [*java, "kafka.Kafka", str(config)]


def _postgres(service: Service, environment: Mapping[str, str]) -> list[str]:
    """Make the database once. PostgreSQL refuses to run as root, so root becomes another name of the same user."""
    data = service.volumes[0] / "data"
    other = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []
    if not (data / "made").exists():
        shutil.rmtree(data, ignore_errors=True)
        user, database = environment["POSTGRES_USER"], environment["POSTGRES_DB"]
        password = f"--pwfile={environment['POSTGRES_PASSWORD_FILE']}"
        make = [*other, "initdb", "--username", user, password, "--auth=scram-sha-256", "--encoding=UTF8", str(data)]
        subprocess.run(make, env=dict(environment), check=True, capture_output=True, timeout=300)
        single = [*other, "postgres", "--single", "-D", str(data), "postgres"]
        create = f"CREATE DATABASE {database};\n".encode()
        subprocess.run(single, env=dict(environment), check=True, capture_output=True, timeout=300, input=create)
        (data / "made").touch()
    return [*other, "postgres", "-D", str(data), "-h", service.host, *_POSTGRES]


def _postgres_folders() -> list[Path]:
    """Where Debian keeps PostgreSQL's programs."""
    return sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
