"""The parser of the ``segments`` command, and the store that its flags and the environment name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_segments import __version__
from airflow_provider_segments.cli.commands import COMMANDS, CONNECTION, EXIT_CODES, Command, Group, arguments_of
from airflow_provider_segments.cli.run import USAGE, UsageError, print_error
from airflow_provider_segments.text import for_message

if TYPE_CHECKING:
    from airflow_provider_segments.core.table import SegmentStore

_EPILOG = f"""\
environment:
  SEGMENTS_ZOOKEEPER, SEGMENTS_CLUSTER, SEGMENTS_STORAGE    where the store is, unless flags say so
  SEGMENTS_ZK_USERNAME, SEGMENTS_ZK_PASSWORD                ZooKeeper digest credentials
  SEGMENTS_ZK_USE_SSL, SEGMENTS_ZK_CA, SEGMENTS_ZK_...      TLS to ZooKeeper: see connection.py
  SEGMENTS_S3_ENDPOINT_URL, SEGMENTS_S3_REGION              S3 servers other than AWS
  SEGMENTS_S3_ACCESS_KEY, SEGMENTS_S3_SECRET_KEY            S3 credentials; without them boto3's standard chain
  SEGMENTS_TIERED_URI, SEGMENTS_TIERED_S3_...               where old segments are offloaded to
  NO_COLOR                                                  no colours, also on a terminal

{EXIT_CODES}"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in printable text of at most a screen."""

    def error(self, message: str) -> NoReturn:
        super().error(for_message(message))


class _JsonParser(_Parser):
    """Says what is wrong as JSON."""

    def error(self, message: str) -> NoReturn:
        print_error(UsageError(message), as_json=True)
        self.exit(USAGE)


def make_parser(*, as_json: bool = False) -> argparse.ArgumentParser:
    """The parser. It puts the :class:`~.commands.Command` into ``command``. ``as_json`` is for its errors."""
    parser = (_JsonParser if as_json else _Parser)(
        prog="segments",
        description="Immutable table segments with atomic replacement and rollback.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"segments {__version__}")
    _add(parser, COMMANDS)
    return parser


def open_store(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> SegmentStore:
    """The store that flags and environment describe."""
    zookeeper = args.zookeeper or environ.get("SEGMENTS_ZOOKEEPER")
    storage = args.storage or environ.get("SEGMENTS_STORAGE")
    if not zookeeper or not storage:
        raise UsageError("no store: give --zookeeper and --storage, or set SEGMENTS_ZOOKEEPER and SEGMENTS_STORAGE")
    from airflow_provider_segments.core.environment import connect
    from airflow_provider_segments.core.model.variables import DEFAULT_CLUSTER

    return connect(zookeeper, storage, args.cluster or environ.get("SEGMENTS_CLUSTER") or DEFAULT_CLUSTER)


def _add(parser: argparse.ArgumentParser, commands: Iterable[Command | Group]) -> None:
    below = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        described: dict[str, Any] = {"help": command.help, "formatter_class": argparse.RawDescriptionHelpFormatter}
        if isinstance(command, Group):
            _add(below.add_parser(command.name, description=command.help, **described), command.commands)
            continue
        text = command.description or command.help
        one = below.add_parser(command.name, description=text, epilog=EXIT_CODES, **described)
        one.set_defaults(command=command)
        for argument in arguments_of(command, CONNECTION):
            one.add_argument(*argument.flags, **argument.options)
