"""The commands, once, for both faces: plain data from which ``main`` makes an argparse parser and ``definition``
Airflow's command objects. Imports nothing but the standard library: every ``airflow`` call loads this module.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

EXIT_CODES = """\
exit codes:
  0  done
  1  refused or failed, nothing was changed by the request that failed; "error: ..." says why
  2  the command line is wrong
  3  the outcome is unknown: the connection broke during a write that may have landed; look before you go on
  4  no ZooKeeper or no storage, or they refused the credentials
"""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its flags, or the name of a positional one, and what argparse calls its options."""

    flags: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """One command. ``action`` is the name of its function in :mod:`.actions`; ``offline`` ones open no store."""

    name: str
    help: str
    action: str
    arguments: tuple[Argument, ...] = ()
    description: str | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Commands below a common word."""

    name: str
    help: str
    commands: tuple[Command, ...]


def _argument(*flags: str, **options: Any) -> Argument:
    return Argument(flags, options)


def _flag(*flags: str, help: str) -> Argument:  # noqa: A002 - argparse's word
    return Argument(flags, {"action": "store_true", "help": help})


def time_ms(text: str) -> int:
    """Argument type: an ISO 8601 date or time, UTC when it names no zone, in epoch milliseconds."""
    from airflow_provider_segments.model.interval import parse_time

    try:
        return parse_time(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no ISO 8601 date or time, as in 2013-01-31 or 2013-01-31T07:00Z"
        ) from None


def names(text: str) -> list[str]:
    """Argument type: segment names joined by commas, which no segment name can contain."""
    return [name for name in text.split(",") if name]


_TABLE = _argument("table", metavar="TABLE", help="name of the table")
_ENTRY = _argument(
    "entry", metavar="ENTRY", help='lineage entry: its id, the beginning of it (4 characters or more), or "latest"'
)

COMMON = (
    _flag("--json", help="print JSON for programs"),
    _flag("--debug", help="show the traceback of an error, and what the libraries log"),
)
"""Arguments of every command."""

CONNECTION = (
    _argument("--zookeeper", metavar="HOSTS", help="host:port[,host:port][/chroot] (or SEGMENTS_ZOOKEEPER)"),
    _argument("--cluster", metavar="NAME", help="root znode (or SEGMENTS_CLUSTER; default: segments)"),
    _argument("--storage", metavar="URI", help="file:///folder or s3://bucket/prefix (or SEGMENTS_STORAGE)"),
)
"""Where the store is, for the stand-alone command. Credentials come from the environment only: a command line can be
read by every user of the machine."""

AIRFLOW_CONNECTION = (
    _argument(
        "--conn-id",
        metavar="CONN_ID",
        default="segments_default",
        help="Airflow connection of type segments (default: segments_default)",
    ),
)
"""Where the store is, for ``airflow segments``."""

_NAMES: Mapping[str, Any] = {"metavar": "NAMES", "type": names, "action": "append"}

COMMANDS: tuple[Command | Group, ...] = (
    Command("tables", "List the tables", "tables"),
    Command("lineage", "Show which segments replaced which", "lineage", (_TABLE,)),
    Command(
        "snapshot",
        "Show what readers see",
        "snapshot",
        (
            _TABLE,
            _argument("--start", metavar="TIME", type=time_ms, help="only from this time on: ISO 8601, UTC"),
            _argument("--end", metavar="TIME", type=time_ms, help="only before this time"),
            _argument("--as-of", metavar="ENTRY", help="the table as it was right after this entry was completed"),
            _flag("--files", help="the addresses of the objects, one a line"),
        ),
    ),
    Command(
        "start",
        "Announce a replacement",
        "start",
        (
            _TABLE,
            _argument("--from", dest="from_names", **_NAMES, help="segments to replace, joined by commas; repeatable"),
            _flag("--from-all", help="replace everything visible"),
            _flag("--from-none", help="replace nothing: an append"),
            _argument("--to", dest="to_names", **_NAMES, help="names of the new segments, if they are known already"),
            _argument("--identity", metavar="TEXT", help="name of the work: the same one finds its own entry again"),
            _flag("--force", help="revert pushes in progress that are in the way"),
        ),
        "Announce a replacement. Without --from..., a REFRESH table is replaced whole and an APPEND table appended to.",
    ),
    Command(
        "stage",
        "Put Parquet files into a push, still hidden",
        "stage",
        (
            _TABLE,
            _ENTRY,
            _argument("paths", metavar="FILE", nargs="+", help="Parquet file, one becomes one segment"),
            _argument("--chunk", metavar="CHUNK", help="time chunk of all files, as in 2013-01-31 or ALL"),
            _argument("--stager", metavar="NAME", default="files", help="who stages: one stager's newest try counts"),
        ),
        "Upload Parquet files and register them, hidden until the entry ends. Rows and times are read from the "
        "footers; each file must lie in one time chunk of the table.",
    ),
    Command(
        "end",
        "Switch readers to a push's segments",
        "end",
        (
            _TABLE,
            _ENTRY,
            _argument("--to", dest="to_names", **_NAMES, help="only these staged segments; the rest is deleted"),
            _flag("--allow-empty", help="end a push without segments: remove what it replaces"),
        ),
    ),
    Command(
        "revert",
        "Roll a replacement back",
        "revert",
        (
            _TABLE,
            _ENTRY,
            _flag("--dry-run", help="show what would reappear, change nothing"),
            _flag("--force", help="also abort a push in progress"),
            _argument("--identity", metavar="TEXT", help="name of the work: a retry of it succeeds"),
        ),
    ),
    Command(
        "cleanup",
        "Mark replaced and reverted segments for deletion once their time is over",
        "cleanup",
        (
            _argument("tables", metavar="TABLE", nargs="*", help="names of tables"),
            _flag("--all", help="every table of the cluster"),
        ),
    ),
    Group(
        "config",
        "Table configs",
        (
            Command(
                "apply",
                "Make or change a table",
                "config_apply",
                (_argument("file", metavar="FILE", help="table config as JSON; - reads standard input"),),
            ),
            Command("show", "Print a table's config as JSON", "config_show", (_TABLE,)),
        ),
    ),
    Group(
        "dev",
        "For development, not for production",
        (
            Command(
                "zookeeper",
                "Run the embedded ZooKeeper in the foreground",
                "dev_zookeeper",
                (
                    _argument("--data-dir", metavar="FOLDER", required=True, help="its data; survives a restart"),
                    _argument("--port", metavar="PORT", type=int, default=2181, help="default: 2181"),
                ),
                offline=True,
            ),
        ),
    ),
)


def arguments_of(command: Command, connection: Iterable[Argument]) -> list[Argument]:
    """All arguments of ``command`` in a face whose stores are found by ``connection``."""
    return [*command.arguments, *(() if command.offline else connection), *COMMON]
