"""The wheel in an environment that holds its hard requirements and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ("core", "clock", "exceptions")

_IMPORT_ALL = """
import importlib, json, pkgutil, sys
import airflow_provider_segments as package
core = json.loads(sys.argv[1])
names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
         if m.name.split(".")[1] in core]
for name in names:
    importlib.import_module(name)
loaded = {name.partition(".")[0] for name in sys.modules}
foreign = sorted({"airflow", "pyspark", "boto3", "pyarrow", "pandas"} & loaded)
print(json.dumps({"modules": len(names), "foreign": foreign}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as users get it, built from a copy of the tree without what is not part of it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("airflow_provider_segments", "spark_apps", "dags"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    out = tmp_path_factory.mktemp("wheel")
    _run("uv", "build", "--quiet", "--wheel", "--out-dir", str(out), str(source))
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh interpreter with the wheel and its hard requirements, in the versions of the lock file."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    _run("uv", "venv", "--quiet", "--python", sys.executable, str(folder))
    python = folder / "bin" / "python"
    locked = re.findall(r"^(?:kazoo|msgspec)==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(locked) == 2
    _run("uv", "pip", "install", "--quiet", "--python", str(python), *locked, str(wheel))
    return python


def test_the_core_imports_with_nothing_but_its_hard_requirements(clean_python: Path) -> None:
    """Neither Airflow nor pyspark, boto3 or pyarrow is there, and every core module imports all the same."""
    for foreign in ("airflow", "pyspark", "boto3", "pyarrow"):
        gone = subprocess.run([clean_python, "-c", f"import {foreign}"], capture_output=True)
        assert gone.returncode == 1
    found = json.loads(_run(str(clean_python), "-c", _IMPORT_ALL, json.dumps(CORE)))
    assert found["modules"] > 25
    assert found["foreign"] == []


def test_the_command_runs_without_airflow(clean_python: Path) -> None:
    """``segments`` is a command of its own."""
    assert "lineage" in _run(str(clean_python.parent / "segments"), "--help")


def test_the_wheel_brings_the_spark_applications_and_dags(wheel: Path) -> None:
    """``BuildSegmentsOperator`` finds its application where the wheel was installed."""
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("share/airflow-provider-segments/spark_apps/build_segments.py") for name in names)
    for dag in ("consistent_push", "rollback", "retention", "ledger_deletion"):
        assert any(name.endswith(f"share/airflow-provider-segments/dags/segments_{dag}.py") for name in names)
    assert any(name.endswith("airflow_provider_segments/py.typed") for name in names)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
