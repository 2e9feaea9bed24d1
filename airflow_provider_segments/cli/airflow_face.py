"""Running a command under ``airflow``: the store comes from an Airflow connection."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, cast

from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_segments.cli.commands import Command
from airflow_provider_segments.cli.run import run
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.hooks.segments import SegmentsHook

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_segments.core.table import SegmentStore


class _CommandLineHook(SegmentsHook):
    """Finds connections in Airflow's database too: a command runs where that can be reached, a task does not."""

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        from airflow.models.connection import Connection as StoredConnection

        try:
            return cast("Connection", StoredConnection.get_connection_from_secrets(conn_id))
        except AirflowNotFoundException as error:
            raise InvalidConfigError(f"{error}; add it, or name another one with --conn-id") from error


def run_command(command: Command, args: argparse.Namespace) -> None:
    """Run ``command``. Airflow ignores what a command returns, so a failure leaves by ``SystemExit``."""
    redirect_stdout_log_handlers_to_stderr()
    if code := run(command, args, _open):
        sys.exit(code)


def _open(args: argparse.Namespace) -> SegmentStore:
    return _CommandLineHook(args.conn_id).get_conn()
