"""The application under a real ``spark-submit``, on the 336,776 flights."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_provider_segments.spark import build
from airflow_provider_segments.spark.environment import spark_app_path, spark_environment, spark_submit_path
from tests.spark.conftest import MakeTable
from tests.support.processes import command_lines

FLIGHTS = 336_776
REQUIRED = ["--zk-hosts", "z", "--storage-uri", "file:///s", "--table", "t", "--entry-id", "e"]


def submit(
    zk_hosts: str, cluster: str, storage_uri: str, *arguments: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the application in an environment that is not activated. (Spark puts what Python writes on stdout.)"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    return subprocess.run(
        [
            str(spark_submit_path()), "--master", "local[2]", "--conf", "spark.ui.enabled=false",
            str(spark_app_path("build_segments")), "--zk-hosts", zk_hosts, "--cluster", cluster,
            "--storage-uri", storage_uri, "--table", "flights", *arguments,
        ],
        env={**environment, **spark_environment(), "SPARK_LOCAL_IP": "127.0.0.1", **(variables or {})},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_a_year_of_flights(
    make_table: MakeTable, flights_csv: Path, zk_hosts: str, cluster: str, storage_uri: str, tmp_path: Path
) -> None:
    """All rows, one segment a month (in UTC a few flights are in January 2014), staged and then visible. What the
    source and Spark need to know of secrets arrives, and shows in no process list, event log or output."""
    table = make_table("flights", time="time_hour", sort=["time_hour"], kind="REFRESH", segmentGranularity="MONTH")
    entry = table.start().entry_id
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.hadoop.fs.s3a.secret.key": "settings-secret",
    }
    variables = {
        "SEGMENTS_INPUT": str(flights_csv),
        "SEGMENTS_INPUT_OPTIONS": json.dumps({"header": "true", "inferSchema": "true", "password": "source-secret"}),
        "SEGMENTS_SPARK_CONF": json.dumps(conf),
    }
    with command_lines() as commands:
        done = submit(
            zk_hosts, cluster, storage_uri, "--entry-id", entry, "--format", "csv", "--option", "nullValue=NA",
            variables=variables,
        )  # fmt: skip
    assert any("build_segments.py" in line and "SparkSubmit" in line for line in commands), "the JVM was seen"
    logged = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "spark.eventLog.dir" in logged, "the settings arrived"
    for place, text in {
        "command line": "\n".join(commands),
        "event log": logged,
        "output": done.stdout + done.stderr,
    }.items():
        assert "source-secret" not in text, place
        assert "settings-secret" not in text, place
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"staged 13 segments, {FLIGHTS:,} rows" in done.stdout
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


def test_secrets_cannot_be_given_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no such argument, and others are refused that would hold one; the help names the variables."""
    text = build._parser().format_help()
    assert "SEGMENTS_S3_SECRET_KEY" in text
    assert not any(word in text for word in ("--secret", "--password", "--access-key"))
    for wrong in (
        ["--option", "password=geheim"],
        ["--option", "sfPassword=geheim"],
        ["--option", "url=jdbc:postgresql://u:geheim@h/d"],
        ["--option", "url=jdbc:postgresql://h/d?user=u&password=geheim"],
        ["--input", "s3a://AKIA:geheim@bucket/x"],
        ["--option", "geheim"],
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit, match="2"):
            build.parse_arguments([*REQUIRED, "--input", "i", *wrong], {})
        said = capsys.readouterr().err
        assert "holds a secret" in said or "KEY=VALUE" in said
        assert "geheim" not in said or wrong[1] == "geheim"


def test_the_input_comes_from_the_environment_or_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    given = build.parse_arguments([*REQUIRED, "--input", "i", "--option", "a=1"], {})
    assert (given.input, given.options) == ("i", {"a": "1"})
    variables = {"SEGMENTS_INPUT": "e", "SEGMENTS_INPUT_OPTIONS": '{"a": 2, "password": "p"}'}
    given = build.parse_arguments([*REQUIRED, "--input", "i", "--option", "a=1"], variables)
    assert (given.input, given.options) == ("e", {"a": "2", "password": "p"})
    for wrong in ({"SEGMENTS_INPUT_OPTIONS": "[geheim"}, {"SEGMENTS_INPUT_OPTIONS": "[1]"}):
        with pytest.raises(SystemExit, match="2"):
            build.parse_arguments([*REQUIRED, "--input", "i"], wrong)
        said = capsys.readouterr().err
        assert "must hold a JSON object" in said
        assert "geheim" not in said
    with pytest.raises(SystemExit, match="2"):
        build.parse_arguments(REQUIRED, {})
    assert "no input" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["nothing", "=x"])
def test_a_malformed_option_is_a_usage_error(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, as such tools do."""
    with pytest.raises(SystemExit, match="2"):
        build._parser().parse_args([*REQUIRED, "--option", wrong])
    assert "is not KEY=VALUE" in capsys.readouterr().err
