"""The example DAGs that come with the package: where they are, and copying them."""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_provider_segments.cli.output import Cell
from airflow_provider_segments.cli.run import Call
from airflow_provider_segments.exceptions import InvalidConfigError

_DAGS = Path("share") / "airflow-provider-segments" / "dags"


def dags_folder() -> Path:
    """The folder of the DAGs: beside the package in a checkout, below ``sys.prefix`` when installed. Raises
    :class:`InvalidConfigError`."""
    candidates = [Path(__file__).resolve().parents[2] / "dags", Path(sys.prefix) / _DAGS]
    for folder in candidates:
        if (folder / "segments_rollback.py").is_file():
            return folder
    raise InvalidConfigError(f"the DAGs are in none of {', '.join(map(str, candidates))}; install the wheel again")


def dags_path(call: Call) -> None:
    """Print the folder of the DAGs."""
    call.out.line(str(dags_folder()))


def dags_install(call: Call) -> None:
    """Copy the DAGs to a folder. One that is there and differs is left alone, unless it is to be replaced."""
    target = Path(call.args.folder)
    target.mkdir(parents=True, exist_ok=True)
    sources = sorted(dags_folder().glob("segments_*.py"))
    results = {source.stem: _copy(source, target / source.name, force=call.args.force) for source in sources}
    call.out.table(("DAG", "RESULT"), [(Cell(name), Cell(result)) for name, result in results.items()])
    if any(result.startswith("kept") for result in results.values()):
        call.note("What was kept differs from what the package brings; --force replaces it.")


def _copy(source: Path, target: Path, *, force: bool) -> str:
    if target.exists() and target.read_bytes() == source.read_bytes():
        return "unchanged"
    if target.exists() and not force:
        return "kept: changed by somebody"
    target.write_bytes(source.read_bytes())
    return "installed"
