"""What Airflow is told of the provider is complete, true, and costs nothing to load."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib import resources
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from airflow_provider_segments.get_provider_info import get_provider_info

INFO = get_provider_info()
HEAVY = ("kazoo", "boto3", "pyspark", "duckdb", "pyarrow", "pandas")


def test_provider_info_satisfies_airflows_schema() -> None:
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def _modules() -> list[str]:
    sections = [INFO[key] for key in ("hooks", "operators", "sensors", "triggers")]
    return [module for section in sections for one in section for module in one["python-modules"]]


@pytest.mark.parametrize("module", _modules())
def test_every_module_named_exists(module: str) -> None:
    importlib.import_module(module)


@pytest.mark.parametrize(
    "path",
    [
        *(one["hook-class-name"] for one in INFO["connection-types"]),
        *(one["handler"] for one in INFO["asset-uris"]),
        *(one["plugin-class"] for one in INFO["plugins"]),
        *INFO["cli"],
    ],
)
def test_every_class_and_function_named_exists(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(module), name)


def test_every_operator_and_sensor_is_in_a_module_that_is_listed() -> None:
    """A class nobody can find in ``airflow providers`` is a class nobody uses."""
    from airflow_provider_segments import operators, sensors, triggers

    listed = set(_modules())
    for package in (operators, sensors, triggers):
        found = {
            f"{package.__name__}.{path.stem}" for path in map(_path, package.__path__) for path in path.glob("*.py")
        }
        without = {f"{package.__name__}.{name}" for name in ("__init__", "base", "job", "job_log", "metrics")}
        assert found - without <= listed


def _path(text: str) -> Any:
    from pathlib import Path

    return Path(text)


def test_secret_fields_of_the_connection_form_are_masked() -> None:
    fields = INFO["connection-types"][0]["conn-fields"]
    secret = {name for name, field in fields.items() if field["schema"].get("format") == "password"}
    assert secret == {"s3_access_key", "s3_secret_key", "s3_session_token", "tls_key_password"} | {
        "tiered_s3_access_key",
        "tiered_s3_secret_key",
        "tiered_s3_session_token",
    }


def test_hook_has_no_deprecated_form_methods() -> None:
    from airflow_provider_segments.hooks.segments import SegmentsHook

    assert not {"get_ui_field_behaviour", "get_connection_form_widgets"} & set(vars(SegmentsHook))


def test_loading_provider_plugin_and_dags_imports_nothing_heavy_and_opens_no_socket() -> None:
    """Every Airflow component loads these; DAG files are parsed all the time and must not reach for ZooKeeper."""
    program = f"""
import socket, sys
def refuse(*_):
    raise AssertionError("a connection was opened while loading")
socket.socket.connect = refuse
import airflow_provider_segments.plugins.segments_plugin, airflow_provider_segments.get_provider_info
early = [name for name in {HEAVY!r} if name in sys.modules]
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder="dags")
assert not bag.import_errors, bag.import_errors
late = [name for name in {HEAVY!r} if name in sys.modules]
print("RESULT", early, late, sorted(bag.dags))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    result = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    dags = [
        "segments_append", "segments_compaction", "segments_compare_regions", "segments_consistent_push",
        "segments_dead_letters", "segments_doctor", "segments_heartbeat", "segments_ledger_deletion",
        "segments_retention", "segments_revoke_lock", "segments_rollback", "segments_unrevert", "segments_upsert",
    ]  # fmt: skip
    assert result == f"RESULT [] [] {dags}"


def test_airflow_finds_the_provider_and_its_connection_form(airflow_db: None) -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()  # type: ignore[no-untyped-call]
    assert manager.providers["airflow-provider-segments"].version
    assert manager.hooks["segments"] is not None
    assert "extra__segments__storage_uri" in manager.connection_form_widgets
    assert manager.connection_form_widgets["extra__segments__s3_secret_key"].is_sensitive
    assert manager.field_behaviours["segments"]["relabeling"]["host"] == "ZooKeeper hosts"
    assert "segments" in manager.asset_uri_handlers
    assert "airflow_provider_segments.links.segments.SegmentsTableLink" in manager.extra_links_class_names
    assert "airflow_provider_segments.links.segments.SegmentsFindingsLink" in manager.extra_links_class_names
