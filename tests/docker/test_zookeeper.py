"""Three ZooKeepers with the configuration and the certificates of ``docker/``, as processes on 127.0.0.1."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper.settings import ZooKeeperSettings
from airflow_provider_segments.dev.zookeeper import free_port
from airflow_provider_segments.exceptions import MetadataUnavailableError

DOCKER = Path(__file__).parents[2] / "docker"
SERVERS = (1, 2, 3)


class Ensemble:
    """The servers, each with a folder and ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = folder / "secrets"
        self.clients = {number: free_port() for number in SERVERS}
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        subprocess.run([DOCKER / "make-secrets", self.secrets, "127.0.0.1"], check=True)
        self._members = {number: f"127.0.0.1:{free_port()}:{free_port()}" for number in SERVERS}

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.clients.values())

    def start(self, number: int) -> None:
        folder = self.folder / str(number)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data" / "myid").write_text(str(number))
        (folder / "zoo.cfg").write_text(self._config(number))
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.submodule_search_locations
        jars = f"{spec.submodule_search_locations[0]}/jars/*"
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with (folder / "log").open("ab") as log:
            self.running[number] = subprocess.Popen(
                ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", jars, main, str(folder / "zoo.cfg")],
                stdout=log, stderr=log, cwd=folder,
            )  # fmt: skip

    def kill(self, number: int) -> None:
        process = self.running.pop(number)
        process.kill()
        process.wait()

    def modes(self) -> dict[int, str]:
        """What each server says it is, by TLS; nothing for one that does not serve."""
        said = {number: self._ask(port) for number, port in self.clients.items()}
        return {
            number: mode[1] for number, text in said.items() if (mode := re.search("Mode: (leader|follower)", text))
        }

    def _ask(self, port: int) -> str:
        trust = ssl.create_default_context(cafile=str(self.secrets / "ca.pem"))
        try:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
                trust.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
            ):
                connection.sendall(b"srvr")
                return b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""

    def settings(self, password: str | None) -> ZooKeeperSettings:
        login = {} if password is None else {"username": "segments", "password": password}
        return ZooKeeperSettings(
            hosts=self.hosts, use_ssl=True, ca=str(self.secrets / "ca.pem"), operation_timeout=120, connect_timeout=120,
            **login,
        )  # fmt: skip

    def store(self, password: str | None) -> SegmentStore:
        uri = (self.folder / "store").as_uri()
        return SegmentStore.connect(cluster="docker", storage_uri=uri, zookeeper=self.settings(password))

    def _config(self, number: int) -> str:
        text = (DOCKER / "zookeeper" / "zoo.cfg").read_text()
        text = text.replace("/run/secrets", str(self.secrets)).replace(
            "=/data", f"={self.folder / str(number) / 'data'}"
        )
        text = text.replace("secureClientPort=2281", f"secureClientPort={self.clients[number]}")
        for member, address in self._members.items():
            text = text.replace(f"zookeeper-{member}:2888:3888", address)
        return text


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    made = Ensemble(tmp_path_factory.mktemp("ensemble"))
    try:
        for number in SERVERS:
            made.start(number)
        yield made
    finally:
        for number in list(made.running):
            made.kill(number)


def eventually(holds: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_table_outlives_the_leader_and_a_rolling_restart(ensemble: Ensemble) -> None:
    """By TLS and with the password that was made; then with another majority each time."""
    password = (ensemble.secrets / "zookeeper_password").read_text()
    eventually(lambda: len(ensemble.modes()) == 3)
    with ensemble.store(password) as store:
        store.apply_config(TableConfig.from_json({"tableName": "t"}))
        entries = [store.table("t").start().entry_id]
        leader = next(number for number, mode in ensemble.modes().items() if mode == "leader")
        for number in (leader, *SERVERS):
            ensemble.kill(number)
            entries.append(store.table("t").start().entry_id)
            ensemble.start(number)
            eventually(lambda: len(ensemble.modes()) == 3)
        assert sorted(store.table("t").lineage().entries) == sorted(entries)


def test_others_see_nothing(ensemble: Ensemble) -> None:
    """Without the password, and without TLS."""
    password = (ensemble.secrets / "zookeeper_password").read_text()
    with ensemble.store(password) as store:
        store.apply_config(TableConfig.from_json({"tableName": "secret"}))
    with pytest.raises(MetadataUnavailableError), ensemble.store("wrong") as store:
        store.tables()
    plain = ZooKeeperSettings(hosts=ensemble.hosts, connect_timeout=5, operation_timeout=5)
    with pytest.raises(MetadataUnavailableError):
        SegmentStore.connect(cluster="docker", storage_uri="/", zookeeper=plain)
