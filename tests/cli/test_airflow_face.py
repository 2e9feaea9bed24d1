"""``airflow segments``: the same commands, through Airflow's own parser, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from airflow_provider_segments.cli.commands import COMMANDS, Command
from tests.cli.conftest import DAILY, CommandLine

SCRIPT = """
import contextlib, io, json, sys
from airflow.cli import cli_parser
parser = cli_parser.get_parser()
results = {}
for line in sys.stdin.read().splitlines():
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            args = parser.parse_args(line.split())
            args.func(args)
        except SystemExit as left:
            code = left.code
    results[line] = [code, out.getvalue(), err.getvalue()]
print("RESULTS" + json.dumps(results))
"""


def run_airflow(lines: list[str], home: Path, **environ: str) -> dict[str, tuple[int, str, str]]:
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input="\n".join(lines),
        env=os.environ | settings | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, tuple[int, str, str]] = json.loads(done.stdout.partition("RESULTS")[2])
    return results


def test_airflow_runs_the_same_commands_on_its_connection(segments: CommandLine) -> None:
    segments.make_table(**DAILY)
    entry = segments.push(1)
    hosts, cluster, storage = (os.environ[f"SEGMENTS_{name}"] for name in ("ZOOKEEPER", "CLUSTER", "STORAGE"))
    connection = {"conn_type": "segments", "host": hosts, "extra": {"cluster": cluster, "storage_uri": storage}}
    lines = [
        "segments --help",
        "segments lineage t --json --conn-id here",
        "segments config show t --conn-id here",
        "segments revert t latest --dry-run --allow-empty --conn-id here",
        "segments end t 0000 --conn-id here",
        "segments retention --conn-id here",
        "segments tables --conn-id nowhere",
        "segments timeline t --json --conn-id here",
        "segments locks list t --json --conn-id here",
        "segments locks revoke t 0000 --conn-id here",
    ]
    found = run_airflow(lines, segments.folder / "airflow", AIRFLOW_CONN_HERE=json.dumps(connection))
    shown, lineage, config, dry_run, refused, wrong, nowhere, timeline, locks, revoked = (found[line] for line in lines)
    assert [one["state"] for one in json.loads(timeline[1])["lines"]] == ["visible"]
    assert (locks[0], json.loads(locks[1])) == (0, [])
    assert (revoked[0], "[no-such-lock]" in revoked[2]) == (1, True)
    names = [command.name for command in COMMANDS]
    assert [name for name in names if f" {name} " not in " ".join(shown[1].split())] == []
    assert "outcome is unknown" in shown[1]
    assert (lineage[0], json.loads(lineage[1])["latest"]) == (0, entry)
    assert json.loads(config[1])["tableName"] == "t"
    assert dry_run[1].startswith(f"would revert entry {entry}")
    assert (refused[0], refused[1]) == (1, "")
    assert refused[2].endswith("error: table 't': no lineage entry is called '0000'\n")
    assert wrong[0] == 2
    assert nowhere[0] == 1
    assert "--conn-id" in nowhere[2]
    assert "Traceback" not in refused[2]


def test_every_action_exists() -> None:
    from airflow_provider_segments.cli.run import action_of

    flat = [one for item in COMMANDS for one in ([item] if isinstance(item, Command) else item.commands)]
    assert all(callable(action_of(command)) for command in flat)
