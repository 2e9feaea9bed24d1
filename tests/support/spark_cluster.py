"""A standalone Spark: a master and workers, each a process, and executors that are their children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from airflow_provider_segments.dev.zookeeper import free_port
from airflow_provider_segments.spark.environment import spark_environment, spark_home

_DAEMON = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
_EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkCluster:
    """Use it in a ``with``. Each worker has one core."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.port = free_port()
        self._count = workers
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """For ``--master``."""
        return f"spark://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        self._master = self._daemon("org.apache.spark.deploy.master.Master", *place)
        self._wait_for_master()
        self._workers = [self._worker() for _ in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for executor in self.executors():
            executor.kill()
        for process in [*self._workers, self._master]:
            assert process is not None
            process.kill()
            process.wait()

    def executors(self) -> list[psutil.Process]:
        """The executors that run now."""
        found = []
        for worker in self._workers:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(worker.pid).children(recursive=True):
                    found += [child] if any(_EXECUTOR in part for part in child.cmdline()) else []
        return found

    def kill_executor(self) -> bool:
        """Kill -9 an executor; its worker starts another one. Returns False when none runs."""
        for executor in self.executors():
            with suppress(psutil.NoSuchProcess):
                executor.send_signal(signal.SIGKILL)
                return True
        return False

    def kill_worker(self) -> None:
        """Kill -9 a worker and its executors, and start another one."""
        worker = self._workers.pop(0)
        executors = psutil.Process(worker.pid).children(recursive=True)
        worker.kill()
        worker.wait()
        for executor in executors:
            with suppress(psutil.NoSuchProcess):
                executor.kill()
        self._workers.append(self._worker())

    def _worker(self) -> subprocess.Popen[bytes]:
        place = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self.folder / "work")]
        return self._daemon("org.apache.spark.deploy.worker.Worker", *place, "--cores", "1", "--memory", "1g", self.url)

    def _daemon(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
        with (self.folder / "daemons.log").open("ab") as log:
            return subprocess.Popen(
                [str(spark_home() / "bin" / "spark-class"), main, *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**environment, **spark_environment(), **_DAEMON},
            )  # fmt: skip

    def _wait_for_master(self) -> None:
        until = time.monotonic() + 300
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2):
                return
            assert time.monotonic() < until, (self.folder / "daemons.log").read_text()[-3000:]
            time.sleep(0.1)
