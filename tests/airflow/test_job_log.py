"""The log of a job: levels kept, quiet, and a failure that is explained by the job's own error."""

from __future__ import annotations

import logging
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import JobFailedError
from airflow_provider_segments.operators.build import BuildSegmentsOperator
from airflow_provider_segments.operators.job_log import JobLog, explain_code
from airflow_provider_segments.spark.environment import log_environment
from tests.airflow.helpers import context, make_table

SAID = [
    ("Spark-Submit cmd: spark-submit --conf a=b " + "x" * 600, logging.DEBUG),
    ("WARNING: Using incubator modules: jdk.incubator.vector", logging.DEBUG),
    ("26/11/22 04:00:00 WARN NativeCodeLoader: Unable to load native-hadoop library", logging.WARNING),
    ("2026-11-22 04:00:01,123 INFO table 't': 12 rows in 1 time chunk, 1 task", logging.INFO),
    ("26/11/22 04:00:02 ERROR TaskSetManager: Task 0 failed", logging.ERROR),
    ("\tat java.base/java.lang.Thread.run(Thread.java:840)", logging.ERROR),
    ("2026-11-22 04:00:03,000 ERROR SourceDataError: table 't': the input has no rows", logging.ERROR),
    ("26/11/22 04:00:04 INFO ShutdownHookManager: Shutdown hook called", logging.INFO),
]


@pytest.fixture
def logger() -> logging.Logger:
    found = logging.getLogger("tests.job_log")
    found.setLevel(logging.DEBUG)
    return found


def test_every_line_keeps_its_level_and_the_command_is_for_debugging(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    log = JobLog(logger)
    for line, _ in SAID:
        log.info("%s", line)
    assert [record.levelno for record in caplog.records] == [level for _, level in SAID]
    assert caplog.records[3].getMessage() == "table 't': 12 rows in 1 time chunk, 1 task"
    caplog.clear()
    again = JobLog(log)
    again.info(SAID[2][0])
    assert caplog.records[0].levelno == logging.WARNING
    caplog.clear()
    log.warning("something else %d", 7)
    assert caplog.records[0].getMessage() == "something else 7"


def test_jobs_own_error_is_the_exception_of_the_task(logger: logging.Logger) -> None:
    failed = AirflowException("Cannot execute: spark-submit " + "x" * 600 + ". Error code is: 1.")
    log = JobLog(logger)
    for line, _ in SAID:
        log.info(line)
    explained = log.explain(failed)
    assert isinstance(explained, AirflowFailException), "no other attempt makes the input better"
    assert str(explained) == "SourceDataError: table 't': the input has no rows"
    other = AirflowException("YARN application ended with state: FAILED")
    assert log.explain(other) is other


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (-9, "killed (SIGKILL): by the machine or the container when memory ran out"),
        (137, "killed (SIGKILL)"),
        (-15, "told to end (SIGTERM)"),
        (143, "told to end (SIGTERM)"),
        (134, "crash of the JVM"),
        (52, "code 52: Java ran out of memory"),
        (127, "was not found"),
        (1, "spark-submit ended with code 1"),
        (-40, "signal 40"),
    ],
)
def test_exit_codes_and_signals_are_explained(code: int, says: str, logger: logging.Logger) -> None:
    assert says in explain_code(code)
    explained = JobLog(logger).explain(AirflowException(f"Cannot execute: ... Error code is: {code}."))
    assert isinstance(explained, JobFailedError)
    assert says in str(explained)


def test_memory_that_ran_out_is_named_where_only_the_log_tells_it(logger: logging.Logger) -> None:
    log = JobLog(logger)
    log.info("26/11/22 04:00:00 ERROR Executor: Exception in task 0.0: java.lang.OutOfMemoryError: Java heap space")
    explained = log.explain(AirflowException("Cannot execute: x. Error code is: 1."))
    assert "out of memory" in str(explained)
    assert "driver_memory" in str(explained)


def test_what_spark_submit_itself_refuses_is_the_exception_of_the_task(logger: logging.Logger) -> None:
    """It read ``spark-submit ended with code 1``, and the reason was among the warnings."""
    failed = AirflowException("Cannot execute: x. Error code is: 1.")
    log = JobLog(logger)
    why = "org.apache.spark.SparkException: When running with master 'yarn' either HADOOP_CONF_DIR or YARN_CONF_DIR"
    log.info(f'Exception in thread "main" {why} must be set in the environment.')
    explained = str(log.explain(failed))
    assert explained.startswith(f"the job could not be run: {why}")
    assert "give it one, such as local[2]" in explained
    log.info("2026-11-22 04:00:03,000 ERROR SourceDataError: table 't': the input has no rows")
    log.info('Exception in thread "main" org.apache.spark.SparkUserAppException: User application exited with 1')
    assert str(log.explain(failed)) == "SourceDataError: table 't': the input has no rows"


def test_one_setting_brings_sparks_log_back() -> None:
    assert log_environment("WARN", {})["SEGMENTS_SPARK_LOG_LEVEL"] == "WARN"
    assert log_environment("INFO", {})["SEGMENTS_SPARK_LOG_LEVEL"] == "INFO"
    assert log_environment("WARN", {"SEGMENTS_SPARK_LOG_LEVEL": "INFO"})["SEGMENTS_SPARK_LOG_LEVEL"] == "INFO"
    assert Path(log_environment("WARN", {})["LOG4J_CONFIGURATION_FILE"]).is_file()
    assert log_environment(None, {}) == {}
    assert log_environment("WARN", {"LOG4J_CONFIGURATION_FILE": "mine.xml"}) == {}


def test_private_parts_of_the_spark_operator_that_are_relied_upon_are_there() -> None:
    """Each that the package uses, by name. One that goes with a new version of the provider fails here first."""
    operator = SparkSubmitOperator(task_id="t", application="a.py")
    assert operator._hook is None
    assert operator._spark_binary is None
    assert callable(operator._get_hook)
    hook = SparkSubmitHook(spark_binary="spark-submit")
    assert hook._submit_sp is None
    marker = JobLog(hook.log)
    hook._log = marker
    assert hook.log is marker
    source = "".join(
        (Path(__file__).parents[2] / "airflow_provider_segments" / "operators" / f"{name}.py").read_text()
        for name in ("job", "build", "compact")
    )
    used = {name for name in (*vars(operator), *vars(hook), *dir(SparkSubmitOperator)) if name.startswith("_")}
    relied_upon = {name for name in used if f"self.{name}" in source or f'"{name}"' in source}
    assert relied_upon - set(vars(BuildSegmentsOperator)) - set(vars(BuildSegmentsOperator.__mro__[1])) <= {
        "_hook", "_spark_binary", "_get_hook", "_submit_sp", "_log",
    }  # fmt: skip


# --- with real Spark


def run_build(table_name: str, entry_id: str, path: Path, **more: Any) -> BuildSegmentsOperator:
    where: dict[str, Any] = {"table": table_name, "entry_id": entry_id, "input": str(path), "engine": "spark"}
    operator = BuildSegmentsOperator(task_id="build", **where, **more)
    operator.execute(context())
    return operator


def job_lines(capture: pytest.CaptureFixture[str]) -> list[str]:
    """What the task's log has of the job."""
    said = capture.readouterr()
    return [line for line in (said.out + said.err).splitlines() if "SparkSubmitHook" in line]


def test_log_of_a_good_build_is_short_and_its_result_is_last(
    store: SegmentStore, table_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had 364 lines, 21 of them ours, and the result was line 349."""
    table = make_table(store, table_name)
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), path)
    entry_id = table.start().entry_id
    run_build(table_name, entry_id, path)
    said = job_lines(capsys)
    assert 3 <= len(said) < 20, said
    assert "staged 1 segment, 1,000 rows" in said[-1]
    assert not any("[error" in line for line in said), said  # Spark itself may warn on a busy machine
    assert not any("--storage-uri" in line for line in said), "the command is for debugging"
    assert table.staged(entry_id).rows == 1000


def test_failed_build_fails_with_its_own_error(
    store: SegmentStore, table_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = make_table(store, table_name)
    path = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), path)
    with pytest.raises(AirflowFailException, match=r"^SourceDataError: table .* no rows"):
        run_build(table_name, table.start().entry_id, path)
    said = job_lines(capsys)
    assert "[error" in said[-1]
    assert "no rows" in said[-1]


def test_killed_build_says_what_killed_it(store: SegmentStore, table_name: str, tmp_path: Path) -> None:
    """It read ``Error code is: -9``."""
    table = make_table(store, table_name)
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    entry_id = table.start().entry_id
    failed: list[BaseException] = []

    def run() -> None:
        try:
            run_build(table_name, entry_id, path)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    jvm = wait_for_jvm()
    workers = jvm.children(recursive=True)
    jvm.send_signal(signal.SIGKILL)
    thread.join(60)
    assert isinstance(failed[0], JobFailedError)
    assert "killed (SIGKILL)" in str(failed[0])
    assert "memory" in str(failed[0])
    psutil.wait_procs(workers, timeout=30)


def wait_for_jvm() -> Any:
    """The process of ``spark-submit``, once it is a JVM."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process().children():
            if "build_segments" in " ".join(child.cmdline()) and "java" in child.name():  # not a session of these tests
                return child
        time.sleep(0.05)
    raise AssertionError("the JVM did not start")
