"""Where Spark, Python and the scripts are; which credentials a job sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_segments.core import environment as connection
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.spark import environment


def test_the_installed_spark_and_python_come_first() -> None:
    """PATH keeps the rest, and running it twice changes nothing more."""
    found = environment.spark_environment({"PATH": os.pathsep.join(["/usr/bin", str(Path(sys.executable).parent)])})
    assert found["PYSPARK_PYTHON"] == found["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert found["PATH"] == os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin"])
    assert (Path(found["SPARK_HOME"]) / "bin" / "spark-submit").is_file()
    assert environment.spark_submit_path().name == "spark-submit"


def test_it_can_be_imported_without_pyspark() -> None:
    """An Airflow worker asks before it starts Spark."""
    blocked = "import sys; sys.modules['pyspark'] = None; import airflow_provider_segments.spark.environment"
    subprocess.run([sys.executable, "-c", blocked], check=True, cwd=Path(__file__).parents[2])


def test_no_spark_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidConfigError, match=r"install airflow-provider-segments\[spark\]"):
        environment.spark_home()


def test_the_applications_are_found() -> None:
    """In this checkout; a wrong name says where it was looked for."""
    assert environment.spark_app_path("build_segments").is_file()
    with pytest.raises(InvalidConfigError, match="no Spark application 'oops': looked in"):
        environment.spark_app_path("oops")


def test_credentials_come_from_the_environment_and_are_not_shown() -> None:
    """Neither storage nor ZooKeeper secrets are in any repr."""
    given = {
        "SEGMENTS_S3_ACCESS_KEY": "AK",
        "SEGMENTS_S3_SECRET_KEY": "hush-1",
        "SEGMENTS_S3_REGION": "",
        "SEGMENTS_ZK_USERNAME": "me",
        "SEGMENTS_ZK_PASSWORD": "hush-2",
        "SEGMENTS_ZK_USE_SSL": "true",
        "HOME": "/home/me",
    }
    options = connection.storage_options(given)
    assert options == {"access_key": "AK", "secret_key": "hush-1"}
    zookeeper = connection.zookeeper_settings("zk:2181", given)
    assert (zookeeper.username, zookeeper.password, zookeeper.use_ssl) == ("me", "hush-2", True)
    assert "hush" not in repr(open_store("s3://bucket", **options)) + repr(zookeeper)
    assert set(connection.worker_environment(given)) == {name for name, value in given.items() if value} - {"HOME"}
    with pytest.raises(InvalidConfigError, match="SEGMENTS_ZK_USE_SSL must be true or false"):
        connection.zookeeper_settings("zk:2181", {"SEGMENTS_ZK_USE_SSL": "maybe"})
