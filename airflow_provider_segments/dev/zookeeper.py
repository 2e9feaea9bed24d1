"""A ZooKeeper server of one's own for development, tests and the demo: the one inside the pyspark wheel.

Not for production: one server, no replicas. It listens on 127.0.0.1 only.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_provider_segments.exceptions import InvalidConfigError, MetadataUnavailableError

_ALONE = "org.apache.zookeeper.server.ZooKeeperServerMain"
_MEMBER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_CONFIG = """\
tickTime=500
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr
maxClientCnxns=0
maxSessionTimeout=60000
autopurge.purgeInterval=1
"""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EmbeddedZooKeeper:
    """A ZooKeeper 3.9 server process with its data below ``data_dir``, started by :meth:`start` or ``with``.

    Data survives a stop and a kill, and, with ``sync``, a crash of the machine: then every write waits
    for the disk. Raises :class:`InvalidConfigError` without pyspark or Java, and :class:`MetadataUnavailableError`
    when the server does not come up. ``settings`` are more lines of its ``zoo.cfg`` (TLS, authentication; with
    ``server.1`` it is a member of an ensemble, and needs its ``myid`` in ``data_dir/data``) and ``java_options`` more
    options of its JVM.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int | None = None,
        *,
        sync: bool = True,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self.data_dir = data_dir
        self.sync = sync
        self.settings = settings or {}
        self.java_options = java_options
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        """What a client connects to."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid if self._process else None

    def start(self, timeout: float = 60.0) -> Self:
        """Start the server and wait, at most ``timeout`` seconds, until it answers. Raises :class:`InvalidConfigError`
        when the port is taken."""
        _check_free(self.port)
        self.data_dir.mkdir(parents=True, exist_ok=True)
        config = self.data_dir / "zoo.cfg"
        more = "".join(f"{name}={value}\n" for name, value in self.settings.items())
        config.write_text(_CONFIG.format(data=self.data_dir / "data", port=self.port) + more)
        options = ["-Xmx512m", "-XX:+UseSerialGC", f"-Dzookeeper.forceSync={'yes' if self.sync else 'no'}"]
        main = _MEMBER if "server.1" in self.settings else _ALONE
        command = [_java(), *options, *self.java_options, "-cp", f"{_jars()}/*", main, str(config)]
        with (self.data_dir / "zookeeper.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.data_dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_ready(time.monotonic() + timeout)
        return self

    def stop(self) -> None:
        """Stop the server and wait for its end. Safe to call twice."""
        self._end(force=False)

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL)."""
        self._end(force=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end(self, *, force: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill() if force else process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_ready(self, deadline: float) -> None:
        process = self._process
        assert process is not None
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            if _answers(self.port):
                return
            time.sleep(0.05)
        self._end(force=True)
        log = self.data_dir / "zookeeper.log"
        tail = " | ".join(log.read_text(errors="replace").splitlines()[-5:])
        raise MetadataUnavailableError(
            f"the embedded ZooKeeper did not start on port {self.port}; end of {log}: {tail}"
        )


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: what has just closed is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InvalidConfigError(
                f"port {port} of 127.0.0.1 is taken ({error.strerror}): perhaps a ZooKeeper runs there already. "
                "Choose another one (--port)"
            ) from error


def _answers(port: int) -> bool:
    """A server that is still loading its data accepts connections but says nothing to ``srvr`` but an excuse."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"srvr")
            connection.settimeout(2)
            return b"Mode:" in connection.recv(4096)
    except OSError:
        return False


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        raise InvalidConfigError("no Java found: install Java 17, or set JAVA_HOME")
    return java


def _jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidConfigError(
            "the embedded ZooKeeper comes from the pyspark wheel: install pyspark, or run a ZooKeeper"
        )
    return Path(spec.submodule_search_locations[0]) / "jars"
