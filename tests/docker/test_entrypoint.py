"""The entry point of the target ``spark``, called as Kubernetes calls it, with the Spark of this environment."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from airflow_provider_segments.dev.zookeeper import free_port
from airflow_provider_segments.spark.environment import spark_environment
from tests.support.spark_cluster import SparkCluster
from tests.support.standalone import eventually

ENTRYPOINT = Path(__file__).parents[2] / "docker" / "spark" / "entrypoint"
APPLICATION = """
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
ran = spark.sparkContext.parallelize(range(4), 4).map(lambda number: (number, os.environ["SPARK_EXECUTOR_ID"]))
told = spark.conf.get("spark.executorEnv.SPARK_DRIVER_POD_IP")
Path(sys.argv[1]).write_text(f"{told} {sorted(ran.collect())}")
spark.stop()
"""


@contextmanager
def started(log: Path, *command: str | Path, settings: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the entry point, with the variables of a pod."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environment |= {**spark_environment(), "SPARK_LOCAL_IP": "127.0.0.1", **settings}
    with log.open("wb") as file:
        process = subprocess.Popen([ENTRYPOINT, *command], env=environment, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    """Whether somebody does, on 127.0.0.1."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False


def test_its_driver_gets_its_work_done_by_its_executor(tmp_path: Path) -> None:
    """Beside a master without workers: the only executor is the one that is started here."""
    application, result = tmp_path / "application.py", tmp_path / "result"
    application.write_text(APPLICATION)
    port = free_port()
    with SparkCluster(tmp_path / "spark", workers=0) as cluster:
        properties = tmp_path / "spark.properties"
        properties.write_text(
            f"spark.master={cluster.url}\nspark.driver.host=127.0.0.1\nspark.driver.port={port}\n"
            f"spark.driver.memory=512m\nspark.ui.enabled=false\n"
        )
        runner = ("--class", "org.apache.spark.deploy.PythonRunner")
        driver_words = ("driver", "--properties-file", properties, *runner, f"local://{application}", result)
        of_executor = {
            "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
            "SPARK_EXECUTOR_ID": "7",
            "SPARK_EXECUTOR_CORES": "1",
            "SPARK_EXECUTOR_MEMORY": "512m",
            "SPARK_APPLICATION_ID": "spark-1",
            "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
            "SPARK_EXECUTOR_POD_NAME": "build-exec-7",
            "SPARK_RESOURCE_PROFILE_ID": "0",
            "SPARK_CLASSPATH": "/opt/more/*",
            **{f"SPARK_JAVA_OPT_{number}": f"-Dtold.{number}=a b" for number in range(11)},
        }
        log = tmp_path / "driver.log"
        with started(log, *driver_words, settings={"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"}) as driver:
            eventually(lambda: listens(port) or driver.poll() is not None, 300)
            with started(tmp_path / "executor.log", "executor", settings=of_executor) as executor:
                eventually(lambda: "java" in Path(psutil.Process(executor.pid).exe()).name)
                line = psutil.Process(executor.pid).cmdline()
                assert driver.wait(300) == 0, log.read_text()
    assert result.read_text() == f"127.0.0.1 {[(number, '7') for number in range(4)]}"
    assert line[1:12] == [f"-Dtold.{number}=a b" for number in range(11)]
    assert line[line.index("-cp") + 1].startswith("/opt/more/*:")


def test_another_command_is_run_as_it_is() -> None:
    done = subprocess.run([ENTRYPOINT, "printf", "%s|", "a b", "driver"], capture_output=True, text=True, check=True)
    assert done.stdout == "a b|driver|"


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_a_pod_without_its_variables_is_refused(role: str) -> None:
    """Not started with empty ones."""
    environment = {"PATH": os.environ["PATH"], "SPARK_HOME": "/nowhere"}
    done = subprocess.run([ENTRYPOINT, role], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    assert "unbound variable" in done.stderr
