"""CPU that commands of ``segments`` take from start to end, beside imports that they cannot do without.

python -m benchmarks.commands [--rounds 5] [--only "tables,snapshot t"] [--servers 1|3]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_segments.core.model.config import TableConfig
from benchmarks.places import Folder
from benchmarks.report import end_properly, machine, median, show, table
from benchmarks.systems import add_servers, open_segments, zookeeper

COMMANDS = (
    "--help",
    "tables",
    "lineage t",
    "snapshot t",
    "timeline t",
    "locks list t",
    "log t",
    "leases t",
    "deletions",
)
FLOOR = ("pass", "import kazoo", "import kazoo.client", "import airflow_provider_segments.core.table")
NOTES = """\
User and system time of the process and all that it starts, milliseconds, each in a new process; Python's compiled
files are there already. The table is empty and its objects are on this disk: with S3, boto3 is loaded where a command
looks at one. The upper rows run "python -c" with the same interpreter."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after one to warm up")
    parser.add_argument("--only", default=",".join(COMMANDS), help="commands, joined by commas")
    add_servers(parser)
    args = parser.parse_args()
    end_properly()
    print(machine(), flush=True)
    works = {f"python -c {code!r}": [sys.executable, "-c", code] for code in FLOOR}
    main_module = "from airflow_provider_segments.cli.main import main; import sys; sys.exit(main())"
    works |= {
        f"segments {command}": [sys.executable, "-c", main_module, *command.split()] for command in args.only.split(",")
    }
    taken: dict[str, list[float]] = {name: [] for name in works}
    with tempfile.TemporaryDirectory(prefix="commands-") as folder, zookeeper(Path(folder), args.servers) as hosts:
        environment = _environment(Path(folder), hosts)
        for _ in range(args.rounds + 1):
            for name, command in works.items():
                taken[name].append(_cpu(command, environment))
    rows = [[name, show(median(found[1:])), show(min(found[1:]))] for name, found in taken.items()]
    print(table(["", "median", "least"], rows))
    print(NOTES)


def _environment(folder: Path, hosts: str) -> dict[str, str]:
    """What the commands need to find a cluster with one table."""
    (folder / "objects").mkdir()
    where = Folder(folder / "objects")
    with open_segments(hosts, where) as store:
        store.apply_config(TableConfig.from_json({"tableName": "t"}))
        cluster = store.paths.cluster
    named = {"SEGMENTS_ZOOKEEPER": hosts, "SEGMENTS_CLUSTER": cluster, "SEGMENTS_STORAGE": where.uri}
    compiled = {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
    return os.environ | named | compiled


def _cpu(command: Sequence[str], environment: dict[str, str]) -> float:
    """Milliseconds. Raises :class:`CalledProcessError` for a command that fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


if __name__ == "__main__":
    main()
