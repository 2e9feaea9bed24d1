"""``scripts/cluster``: the command line."""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
from pathlib import Path

from cluster import chaos, pushes, story
from cluster.compose import ROOT
from cluster.processes import Cluster
from demo.airflow import DemoFailedError


def main() -> int:
    """Run one command; 0 when it has done what it says."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    for name in ("kazoo", "airflow_provider_segments"):
        logging.getLogger(name).setLevel(logging.ERROR)
    cluster = Cluster(Path(arguments.folder))
    try:
        match arguments.command:
            case "up":
                cluster.up(lambda text: print(text, flush=True))
                print(f"Airflow is at {cluster.airflow().url}; its password is in {cluster.topology.secrets}")
            case "status":
                return _status(cluster)
            case "kill":
                print(f"killed {cluster.kill(arguments.service)} processes of {arguments.service}")
            case "start":
                cluster.start(arguments.service)
                cluster.wait_healthy(arguments.service)
            case "demo":
                story.tell(cluster)
            case "pushes":
                pushes.run(cluster, arguments.count, arguments.engines)
            case "chaos":
                _chaos(cluster, arguments.minutes)
            case "down":
                cluster.down()
    except DemoFailedError as error:
        print(f"It failed: {error}", file=sys.stderr)
        return 1
    return 0


def _chaos(cluster: Cluster, minutes: float) -> None:
    """On a cluster of its own, which is made anew and ended."""
    folder = cluster.folder / "chaos"
    shutil.rmtree(folder, ignore_errors=True)
    chaos.run(folder, minutes)
    print("No wrong read, no lost push, no orphan")


def _status(cluster: Cluster) -> int:
    """Print a line for each service; 0 when all run."""
    down = 0
    for name, service in cluster.services.items():
        processes, runs = cluster.processes(name), cluster.is_running(name)
        memory = sum(one.memory_info().rss for one in processes) / 1e6
        state = "done" if runs and not service.check else "runs" if runs else "down"
        down += not runs
        print(f"{name:<22} {service.host:<15} {state:<5} {len(processes):3} processes {memory:7,.0f} MB")
    return min(down, 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/cluster", description="docker/compose.yaml as processes.")
    parser.add_argument("--folder", default=str(ROOT / ".cluster"), help="where everything is kept")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("up", help="start what does not run, and wait until all is healthy")
    commands.add_parser("status", help="what runs, where, with how much memory")
    commands.add_parser("demo", help="push, roll back, free, compact and upsert, on a cluster that is up")
    measured = commands.add_parser(
        "pushes", help="trigger pushes to many tables at once and measure, on a cluster that is up"
    )
    measured.add_argument("count", nargs="?", type=int, default=20)
    measured.add_argument("--engines", nargs="+", choices=["local", "spark"], default=["local", "spark"])
    torment = commands.add_parser(
        "chaos", help="kill something every ten seconds while all goes on; starts and ends all"
    )
    torment.add_argument("minutes", nargs="?", type=float, default=10)
    commands.add_parser("down", help="end everything; the data stays")
    for name, what in (("kill", "kill -9 a service with all it has started"), ("start", "start a service again")):
        commands.add_parser(name, help=what).add_argument("service")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
