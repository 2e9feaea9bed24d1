"""The application under a real ``spark-submit``, on the 336,776 flights."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from airflow_provider_segments.spark import build
from airflow_provider_segments.spark.environment import spark_app_path, spark_environment, spark_submit_path
from tests.spark.conftest import MakeTable

FLIGHTS = 336_776


def submit(zk_hosts: str, cluster: str, storage_uri: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the application in an environment that is not activated. (Spark puts what Python writes on stdout.)"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    return subprocess.run(
        [
            str(spark_submit_path()), "--master", "local[2]", "--conf", "spark.ui.enabled=false",
            str(spark_app_path("build_segments")), "--zk-hosts", zk_hosts, "--cluster", cluster,
            "--storage-uri", storage_uri, "--table", "flights", *arguments,
        ],
        env={**environment, **spark_environment(), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_a_year_of_flights(
    make_table: MakeTable, flights_csv: Path, zk_hosts: str, cluster: str, storage_uri: str
) -> None:
    """All rows, one segment a month (in UTC a few flights are in January 2014), staged and then visible."""
    table = make_table("flights", time="time_hour", sort=["time_hour"], kind="REFRESH", segmentGranularity="MONTH")
    entry = table.start().entry_id
    options = '{"header": "true", "inferSchema": "true"}'
    done = submit(
        zk_hosts, cluster, storage_uri, "--entry-id", entry, "--input", str(flights_csv), "--format", "csv",
        "--options", options, "--option", "nullValue=NA",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"staged 13 segments, {FLIGHTS} rows" in done.stdout
    assert len(table.snapshot()) == 0
    ended = table.end(entry)
    assert (ended.rows, len(ended.segments_to)) == (FLIGHTS, 13)
    assert table.snapshot().rows == FLIGHTS


@pytest.mark.slow
def test_a_refusal_is_one_clear_line_and_an_exit_code(
    make_table: MakeTable, zk_hosts: str, cluster: str, storage_uri: str
) -> None:
    """Not a traceback."""
    entry = make_table("flights").start().entry_id
    done = submit(zk_hosts, cluster, storage_uri, "--entry-id", entry, "--input", "/nowhere.csv", "--format", "csv")
    assert done.returncode != 0
    assert "SourceDataError: input '/nowhere.csv' (csv) cannot be read" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_secrets_cannot_be_given_on_the_command_line() -> None:
    """There is no such argument; the help names the variables."""
    text = build._parser().format_help()
    assert "SEGMENTS_S3_SECRET_KEY" in text
    assert not any(word in text for word in ("--secret", "--password", "--access-key"))


@pytest.mark.parametrize("wrong", ["nothing", "=x"])
def test_a_malformed_option_is_a_usage_error(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, as such tools do."""
    required = ["--zk-hosts", "z", "--storage-uri", "file:///s", "--table", "t", "--entry-id", "e", "--input", "i"]
    with pytest.raises(SystemExit, match="2"):
        build._parser().parse_args([*required, "--option", wrong])
    assert "is not KEY=VALUE" in capsys.readouterr().err
