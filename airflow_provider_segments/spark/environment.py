"""Where this environment's Spark and Python are, so that a job started by anybody finds what it was installed with.

``spark-submit`` of a virtual environment that is not activated finds neither itself nor a Python with our packages:
its scripts look for ``python3`` on ``PATH``, and so do the workers. Importable without pyspark.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_segments.exceptions import InvalidConfigError

_LOG4J = "LOG4J_CONFIGURATION_FILE"
_LOG4J_FILE = Path(__file__).with_name("log4j2.properties")
_APPS = Path("share") / "airflow-provider-segments" / "spark_apps"


def spark_home() -> Path:
    """The folder of the installed pyspark. Raises :class:`InvalidConfigError` when there is none."""
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(folder) / "bin" / "spark-submit").is_file():
            return Path(folder)
    raise InvalidConfigError(
        f"no Spark in the environment of {sys.executable}: install airflow-provider-segments[spark] "
        "(pyspark-client alone has no spark-submit)"
    )


def spark_submit_path() -> Path:
    """The ``spark-submit`` that belongs to :func:`spark_home`, in the environment's ``bin`` where it is there."""
    beside = Path(sys.executable).parent / "spark-submit"
    return beside if beside.is_file() else spark_home() / "bin" / "spark-submit"


def spark_environment(environ: Mapping[str, str] = os.environ, *, log_level: str | None = None) -> dict[str, str]:
    """Environment variables to start ``spark-submit`` with, to be put over ``environ``.

    Driver and local workers then run under this very Python. On a cluster whose nodes keep Python elsewhere, set
    ``spark.pyspark.python`` in the Spark configuration: it wins over ``PYSPARK_PYTHON``.
    """
    here = str(Path(sys.executable).parent)
    rest = [part for part in environ.get("PATH", os.defpath).split(os.pathsep) if part and part != here]
    return log_environment(log_level, environ) | {
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PATH": os.pathsep.join([here, *rest]),
    }


def log_environment(level: str | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that give the driver's log4j our configuration, with that ``level`` for Spark's own log.

    Nothing for ``None``, or where the environment names a configuration already.
    """
    if level is None or environ.get(_LOG4J) not in (None, str(_LOG4J_FILE)):
        return {}
    return {_LOG4J: str(_LOG4J_FILE), "SEGMENTS_SPARK_LOG_LEVEL": environ.get("SEGMENTS_SPARK_LOG_LEVEL") or level}


def spark_app_path(name: str) -> Path:
    """The script ``spark_apps/<name>.py``: beside the package in a checkout, below ``sys.prefix`` when installed.

    Raises :class:`InvalidConfigError` when it is in neither place.
    """
    candidates = [Path(__file__).resolve().parents[2] / "spark_apps", Path(sys.prefix) / _APPS]
    for folder in candidates:
        if (script := folder / f"{name}.py").is_file():
            return script
    looked = " and ".join(str(folder) for folder in candidates)
    raise InvalidConfigError(f"no Spark application {name!r}: looked in {looked}; reinstall airflow-provider-segments")
