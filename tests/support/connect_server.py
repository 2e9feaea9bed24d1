"""A Spark Connect server: one Spark that many builds use, as a process."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import grpc

from airflow_provider_segments.dev.zookeeper import free_port
from airflow_provider_segments.spark.environment import spark_environment, spark_submit_path
from tests.support.processes import ServerProcess


class ConnectServer(ServerProcess):
    """Use it in a ``with``."""

    def __init__(self, folder: Path, master: str = "local[2]") -> None:
        super().__init__(folder)
        self.port = free_port()
        self._master = master

    @property
    def url(self) -> str:
        """For ``SparkSession.builder.remote``."""
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> subprocess.Popen[bytes]:
        """Start it in Spark's own JVM."""
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self.port,
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": self.folder / "warehouse",
            "spark.local.dir": self.folder / "local",
        }
        command = [
            str(spark_submit_path()), "--master", self._master, "--driver-memory", "1g",
            *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
        ]  # fmt: skip
        environment = {**os.environ, **spark_environment(log_level="WARN"), "SPARK_LOCAL_IP": "127.0.0.1"}
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)

    def wait(self) -> None:
        """Wait until it takes requests."""
        assert self.process is not None
        until = time.monotonic() + 300
        while True:
            with grpc.insecure_channel(self.url.removeprefix("sc://")) as channel:
                try:
                    return grpc.channel_ready_future(channel).result(timeout=1.0)
                except grpc.FutureTimeoutError:
                    ended = self.process.poll() is not None
                    if ended or time.monotonic() > until:
                        raise RuntimeError((self.folder / "log").read_text()[-2000:]) from None
