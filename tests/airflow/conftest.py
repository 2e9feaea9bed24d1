"""A real Airflow (SQLite, in a folder of its own), a real ZooKeeper and, where a test asks for it, real Spark.

AIRFLOW_HOME has to be set before the first import of Airflow, so it is set here, at import.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

REPOSITORY = Path(__file__).parents[2]
HOME = Path(tempfile.mkdtemp(prefix="segments-airflow-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

os.environ.update(
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(REPOSITORY / "dags"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="True",
    AIRFLOW__API_AUTH__JWT_SECRET="for-tests-only-" * 5,
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED="False",
    AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL="3600",
    AIRFLOW_CONN_SPARK_DEFAULT=json.dumps({"conn_type": "spark", "host": "local[1]"}),
    SPARK_LOCAL_IP="127.0.0.1",
)

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

    from airflow_provider_segments.core.table import SegmentStore
    from airflow_provider_segments.dev.s3 import S3Server
    from tests.airflow.helpers import MetricsBackend, RunDag


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """Airflow's metadata database, once."""
    from airflow.utils.db import initdb

    initdb()
    logging.getLogger("airflow").setLevel(logging.INFO)


@pytest.fixture
def table_name() -> str:
    """A table that no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def storage_root(tmp_path: Path) -> Path:
    """Where the segments of this test go."""
    return tmp_path / "segments"


@pytest.fixture
def connection(zk_hosts: str, storage_root: Path, table_name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The connection ``segments_default``: this test's storage, the session's ZooKeeper."""
    described = {
        "conn_type": "segments",
        "host": zk_hosts,
        "extra": {"storage_uri": storage_root.as_uri(), "cluster": f"airflow_{table_name}", "deployment": "tests"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(described))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")  # half of a short job is the second compiler's
    return described


@pytest.fixture
def store(connection: dict[str, Any], airflow_db: None) -> Iterator[SegmentStore]:
    """The store behind ``segments_default``."""
    from airflow_provider_segments.hooks.segments import SegmentsHook

    with SegmentsHook().get_conn() as opened:
        yield opened


@pytest.fixture
def run_dag(airflow_db: None, connection: dict[str, Any]) -> RunDag:
    """Run a DAG made in a test through Airflow's own scheduling rules; returns the finished DAG run."""

    def run(dag: DAG, conf: dict[str, Any] | None = None) -> DagRun:
        _sync(dag)
        return dag.test(run_conf=conf)  # type: ignore[no-any-return]

    return run


def _sync(dag: DAG) -> None:
    """``dag.test()`` wants the DAG to be in the database, as the DAG processor would have put it there."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    with create_session() as session:
        DagBundlesManager().sync_bundles_to_db(session=session)  # type: ignore[no-untyped-call]
        session.commit()
        lazy = LazyDeserializedDAG.from_dag(dag)
        SerializedDAG.bulk_write_to_db("dags-folder", None, [dag], session=session)
        session.flush()
        SerializedDagModel.write_dag(lazy, bundle_name="dags-folder", session=session)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server that checks credentials, with the bucket ``segments``."""
    from airflow_provider_segments.dev.s3 import S3Server

    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        server.create_bucket("segments")
        yield server


@pytest.fixture
def metrics() -> Iterator[MetricsBackend]:
    """Airflow's metrics, with a backend of the test's own."""
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
    from airflow.sdk.observability import stats

    from tests.airflow.helpers import MetricsBackend

    backend = MetricsBackend()
    stats.initialize(factory=lambda: backend, export_legacy_names=False)
    yield backend
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)
