"""The commands as Airflow wants them (the provider's ``cli`` section). The only module here that imports Airflow, with
``airflow_face``, which is loaded when a command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

from airflow_provider_segments.cli.commands import (
    AIRFLOW_CONNECTION,
    COMMANDS,
    EXIT_CODES,
    Argument,
    Command,
    Group,
    arguments_of,
)


def get_segments_cli_commands() -> list[CLICommand]:
    """``airflow segments ...``"""
    return [
        GroupCommand(
            name="segments",
            help="Immutable table segments: lineage, snapshots, replacement and rollback",
            subcommands=tuple(map(_command, COMMANDS)),
            epilog=EXIT_CODES,
        )
    ]


def _command(command: Command | Group) -> CLICommand:
    if isinstance(command, Group):
        return GroupCommand(command.name, command.help, tuple(map(_command, command.commands)))
    arguments = arguments_of(command, AIRFLOW_CONNECTION)
    return ActionCommand(
        name=command.name,
        help=command.help,
        func=_function(command),
        args=tuple(_argument(argument) for argument in arguments),
        description=command.description,
        epilog=EXIT_CODES,
    )


def _argument(argument: Argument) -> Arg:
    return Arg(flags=argument.flags, **argument.options)  # type: ignore[no-untyped-call]


def _function(command: Command) -> Callable[..., Any]:
    run: Callable[..., Any] = lazy_load_command(f"{__package__}.airflow_face.run_command")
    return partial(run, command)
