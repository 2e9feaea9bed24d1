"""The build operator: what it gives the job, and how it ends it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import JobFailedError, TableNotFoundError
from airflow_provider_segments.operators.build import BuildSegmentsOperator
from tests.airflow.helpers import context, make_table
from tests.support.connect_server import ConnectServer


def build(table_name: str, entry_id: str, **more: Any) -> BuildSegmentsOperator:
    """By Spark, whatever there is to read: nobody looks before."""
    more = {"input": "/absent", "engine": "spark", **more}
    return BuildSegmentsOperator(task_id="build", table=table_name, entry_id=entry_id, **more)


def test_killed_build_leaves_no_process_and_stages_nothing(store: SegmentStore, table_name: str) -> None:
    """``spark-submit`` becomes the JVM, which starts a Python driver: both have to go."""
    table = make_table(store, table_name)
    entry_id = str(table.start().entry_id)
    operator = build(table_name, entry_id)
    failed: list[BaseException] = []
    thread = in_thread(operator, failed)
    processes = _wait_for_driver()
    operator.on_kill()
    thread.join(30)
    assert not thread.is_alive()
    assert failed, "a killed job is a failed task"
    gone, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive
    assert len(gone) >= 2, "the JVM and its Python driver"
    assert table.staged(entry_id).rows == 0


def in_thread(operator: BuildSegmentsOperator, failed: list[BaseException]) -> threading.Thread:
    """Execute it beside the test; what it raises goes to ``failed``."""

    def run() -> None:
        try:
            operator.execute(context())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _wait_for_driver() -> list[Any]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = psutil.Process().children(recursive=True)
        if any("build_segments.py" in " ".join(_command(one)) and "python" in one.name() for one in found):
            return [one for one in found if "build_segments.py" in " ".join(_command(one))]
        time.sleep(0.1)
    raise AssertionError("the job's Python driver did not start")


def _command(process: Any) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


def test_job_finds_this_environment_when_the_path_does_not(
    store: SegmentStore, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment that is not activated: the binary is absolute, the rest is in the job's environment."""
    make_table(store, table_name)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ran: dict[str, Any] = {}

    class Recorded(subprocess.Popen[str]):
        def __init__(self, command: list[str], **options: Any) -> None:
            ran.update(command=command, path=os.environ["PATH"], python=os.environ["PYSPARK_PYTHON"])
            ran.update(input=os.environ["SEGMENTS_INPUT"], options=os.environ["SEGMENTS_INPUT_OPTIONS"])
            ran.update(conf=os.environ["SEGMENTS_SPARK_CONF"])
            super().__init__([sys.executable, "-c", "print('submitted')"], **options)

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.subprocess.Popen", Recorded)
    conf = {"spark.ui.enabled": "false", "spark.hadoop.fs.s3a.secret.key": "geheim"}
    operator = build(table_name, "x", conf=conf, input_options='{"header": "true"}')
    operator.execute(context())
    assert ran["command"][0] == str(Path(sys.executable).with_name("spark-submit"))
    assert ran["path"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert ran["python"] == sys.executable
    assert (ran["input"], ran["options"]) == ("/absent", '{"header": "true"}')
    assert ran["conf"] == '{"spark.hadoop.fs.s3a.secret.key": "geheim"}'
    assert os.environ["PATH"] == "/usr/bin:/bin", "the task's own environment is as it was"
    line = " ".join(ran["command"])
    for part in (
        "--conf spark.ui.enabled=false",
        "spark.sql.warehouse.dir=",
        "--entry-id x",
    ):
        assert part in line
    assert not any(word in line for word in ("header", "geheim", "/absent"))
    operator.execute(context())
    assert " ".join(ran["command"]) == line, "the same task object submits the same again"
    assert operator.application_args is not None
    assert operator.application_args.count("--table") == 1


def test_input_that_a_build_is_bound_to_refuse_is_refused_before_spark_is_started(
    store: SegmentStore, table_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nanosecond times used to fail minutes after Spark had started."""
    make_table(store, table_name)
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"at": pa.array([0], pa.timestamp("ns"))}), path)
    monkeypatch.setattr("subprocess.Popen.__init__", lambda *_, **__: pytest.fail("a process was started"))
    operator = BuildSegmentsOperator(task_id="build", table=table_name, entry_id="x", input=str(path))
    with pytest.raises(AirflowFailException, match=r"before Spark was started.*'at' has times in nanoseconds"):
        operator.execute(context())


@pytest.mark.parametrize("engine", ["auto", "local"])
@pytest.mark.parametrize(
    "more",
    [
        {"input": "{folder}/absent.csv", "input_format": "csv"},
        {"input": "{folder}/there.csv,{folder}/absent.csv", "input_format": "csv"},
        {"input": "file://{folder}/absent.json", "input_format": "json", "schema": "n LONG"},
        {"input": "{folder}/absent.parquet", "conf": {"spark.sql.shuffle.partitions": "2"}},
    ],
)
def test_input_that_is_not_there_is_refused_before_spark_is_started(
    store: SegmentStore, table_name: str, tmp_path: Path, no_process: None, more: dict[str, Any], engine: str
) -> None:
    """``auto`` left it to Spark to find out, and read what was there of several paths as if it were all."""
    table = make_table(store, table_name)
    (tmp_path / "there.csv").write_text("n\n1\n")
    given = {**more, "input": more["input"].format(folder=tmp_path), "engine": engine}
    operator = build(table.name, str(table.start().entry_id), input_options={"header": "true"}, **given)
    with pytest.raises(AirflowFailException, match=rf"nothing at \S*{tmp_path}/absent\.\w+, as seen"):
        operator.execute(context())


@pytest.mark.parametrize("options", ["[1]", "no json"])
def test_input_options_that_are_no_object_are_refused(connection: Any, options: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting"):
        build("t", "x", input_options=options).execute(context())


# --- without Spark


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a process is started."""
    monkeypatch.setattr("subprocess.Popen.__init__", lambda *_, **__: pytest.fail("a process was started"))


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that would have started Spark."""
    commands: list[list[str]] = []

    class Recorded(subprocess.Popen[str]):
        def __init__(self, command: list[str], **options: Any) -> None:
            commands.append(command)
            super().__init__([sys.executable, "-c", "print('submitted')"], **options)

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.subprocess.Popen", Recorded)
    return commands


def numbers(path: Path, rows: int = 1000) -> str:
    pq.write_table(pa.table({"n": pa.array(range(rows), pa.int64())}), path)
    return str(path)


def build_of(table: Table, source: str, **more: Any) -> BuildSegmentsOperator:
    entry_id = table.start().entry_id
    return BuildSegmentsOperator(task_id="build", table=table.name, entry_id=entry_id, input=source, **more)


@pytest.mark.parametrize("engine", ["auto", "local"])
def test_a_small_input_is_built_without_a_process(
    store: SegmentStore, table_name: str, tmp_path: Path, engine: str, no_process: None
) -> None:
    """Also by a task object that is copied, as Airflow does, and run again."""
    table = make_table(store, table_name)
    operator = build_of(table, numbers(tmp_path / "in.parquet"), engine=engine)
    copy.deepcopy(operator).execute(context())
    operator.execute(context())
    operator.execute(context())
    table.end(operator.entry_id)
    assert table.snapshot().rows == 1000


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A Spark that runs already."""
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server


def _wait_for_work(server: ConnectServer, seconds: float = 15.0) -> None:
    """Until the server has used so much of the CPU since now: far more than planning takes."""
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    before = process.cpu_times().user
    until = time.monotonic() + 600
    while process.cpu_times().user < before + seconds:
        assert time.monotonic() < until, "the server does not work"
        time.sleep(0.2)


@pytest.fixture
def connect_conn(connect_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The connection to it."""
    described = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": connect_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_SERVER", json.dumps(described))
    return "spark_server"


def test_a_spark_that_runs_already_builds_without_a_process(
    store: SegmentStore, table_name: str, tmp_path: Path, connect_conn: str, no_process: None
) -> None:
    """Rows, slices and statistics as any Spark would have it: an aggregation is read, of which plans are not shown."""
    numbers(tmp_path / "in.parquet", 50_000)
    config = make_table(store, table_name).config().to_json()
    store.apply_config(TableConfig.from_json({**config, "segmentBuildConfig": {"targetRowsPerSegment": 10_000}}))
    table = store.table(table_name)
    query = f"SELECT n % 30000 AS n, count(*) AS times FROM parquet.`{tmp_path}/in.parquet` GROUP BY n % 30000"
    operator = build_of(table, query, input_format="sql", conn_id=connect_conn)
    operator.execute(context())
    operator.execute(context())
    table.end(operator.entry_id)
    with table.snapshot() as taken:
        segments = [pq.read_table(url.removeprefix("file://")) for url in taken.urls]
    assert len(segments) > 2
    rows = pa.concat_tables(segments).sort_by("n").to_pydict()
    assert rows == {"n": [*range(30_000)], "times": [2] * 20_000 + [1] * 10_000}


def test_a_build_at_a_spark_that_runs_already_is_killed(
    store: SegmentStore, table_name: str, tmp_path: Path, connect_server: ConnectServer, connect_conn: str
) -> None:
    """Hours of work end at once, nothing is staged, and the server's cores are free for the next build."""
    table = make_table(store, table_name)
    endless = "SELECT sum(id % 7) AS n FROM range(100000000000000)"
    operator = build_of(table, endless, input_format="sql", conn_id=connect_conn)
    failed: list[BaseException] = []
    thread = in_thread(operator, failed)
    _wait_for_work(connect_server)
    operator.on_kill()
    thread.join(120)
    assert not thread.is_alive() and failed
    assert table.staged(operator.entry_id).rows == 0
    table.abort(operator.entry_id)
    other = build_of(table, numbers(tmp_path / "in.parquet"), engine="spark", conn_id=connect_conn)
    other.execute(context())
    assert table.staged(other.entry_id).rows == 1000


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"conf": {"spark.executor.memory": "1g"}}, "spark.executor.memory cannot be set"),
        ({"conf": {"spark.sql.shuffle.partitions": "2"}, "input": "/absent"}, "'/absent'.* cannot be read"),
        ({"input_format": "sql", "input": "SELECT 1 AS n WHERE false"}, "no rows"),
    ],
)
def test_what_a_running_spark_cannot_build_is_refused_without_a_retry(
    store: SegmentStore, table_name: str, tmp_path: Path, connect_conn: str, more: Any, message: str
) -> None:
    table = make_table(store, table_name)
    operator = build_of(table, numbers(tmp_path / "in.parquet"), engine="spark", conn_id=connect_conn)
    for name, value in more.items():
        setattr(operator, name, value)
    with pytest.raises(AirflowFailException, match=message):
        operator.execute(context())
    assert table.staged(operator.entry_id).rows == 0


@pytest.mark.parametrize(
    "more",
    [
        {"local_bytes": 100},
        {"engine": "spark"},
        {"schema": "n LONG"},
        {"conf": {"spark.sql.parquet.inferTimestampNTZ.enabled": "false"}},
        {"input_options": {"mergeSchema": "true"}},
        {"input_format": "json"},
    ],
)
def test_what_is_large_or_told_to_spark_is_submitted(
    store: SegmentStore, table_name: str, tmp_path: Path, submitted: list[list[str]], more: dict[str, Any]
) -> None:
    """Whatever Spark is told about reading is for Spark."""
    table = make_table(store, table_name)
    build_of(table, numbers(tmp_path / "in.parquet"), **more).execute(context())
    assert len(submitted) == 1


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"engine": "local", "input_format": "json"}, "Not to be built without Spark: .*'json'"),
        ({"engine": "fast"}, "auto, local, spark, not 'fast'"),
        ({"engine": "local", "table": "absent"}, "absent"),
    ],
)
def test_engine_that_cannot_is_refused_without_a_retry(
    store: SegmentStore, table_name: str, tmp_path: Path, no_process: None, more: dict[str, Any], says: str
) -> None:
    table = make_table(store, table_name)
    operator = build_of(table, numbers(tmp_path / "in.parquet"))
    for name, value in more.items():
        setattr(operator, name, value)
    with pytest.raises((AirflowFailException, TableNotFoundError), match=says):
        operator.execute(context())


def test_empty_input_is_refused_as_by_the_job(
    store: SegmentStore, table_name: str, tmp_path: Path, no_process: None
) -> None:
    table = make_table(store, table_name)
    operator = build_of(table, numbers(tmp_path / "in.parquet", 0))
    with pytest.raises(AirflowFailException, match=r"^SourceDataError: table .* no rows"):
        operator.execute(context())
    operator.allow_empty = True
    operator.execute(context())
    assert table.staged(operator.entry_id).rows == 0


def test_build_in_the_task_that_is_killed_stages_nothing(
    store: SegmentStore, table_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow calls ``on_kill`` while the segment is being uploaded."""
    table = make_table(store, table_name)
    operator = build_of(table, numbers(tmp_path / "in.parquet"))
    put_file = LocalStore.put_file

    def killed(*args: Any, **options: Any) -> Any:
        operator.on_kill()
        return put_file(*args, **options)

    monkeypatch.setattr(LocalStore, "put_file", killed)
    with pytest.raises(JobFailedError, match="ended before it staged"):
        operator.execute(context())
    assert table.staged(operator.entry_id).rows == 0
    assert list(store.storage.list(f"{table_name}/")), "it was in the middle"
