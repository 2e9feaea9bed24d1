"""What a caller imports from the package itself, and what that costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import airflow_provider_segments
from airflow_provider_segments.core.table import SegmentStore

HEAVY = ("airflow", "boto3", "botocore", "kazoo", "msgspec", "pyarrow", "pyspark")
_LOADED = f"import json, sys; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"


def loaded_by(code: str) -> list[str]:
    """Which of ``HEAVY`` a fresh interpreter has loaded once it ran ``code``."""
    done = subprocess.run([sys.executable, "-c", f"{code}\n{_LOADED}"], capture_output=True, text=True, check=True)
    loaded: list[str] = json.loads(done.stdout)
    return loaded


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Airflow imports it in every process, whether or not that has to do with segments."""
    assert loaded_by("import airflow_provider_segments") == []
    assert loaded_by("import airflow_provider_segments; dir(airflow_provider_segments)") == []


def test_the_store_is_loaded_when_somebody_asks_for_it_and_nothing_of_airflow_or_spark_with_it() -> None:
    assert loaded_by("from airflow_provider_segments import SegmentStore") == ["kazoo", "msgspec"]
    assert airflow_provider_segments.SegmentStore is SegmentStore


def test_the_package_names_its_public_names_and_no_others() -> None:
    assert set(airflow_provider_segments.__all__) <= set(dir(airflow_provider_segments))
    with pytest.raises(AttributeError, match="'airflow_provider_segments' has no attribute 'Oops'"):
        _ = airflow_provider_segments.Oops
