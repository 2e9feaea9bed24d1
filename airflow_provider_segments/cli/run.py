"""Running one command: its store, its exit code, its errors."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_segments.cli.commands import Command
from airflow_provider_segments.cli.output import Output
from airflow_provider_segments.exceptions import (
    MetadataUnavailableError,
    OutcomeUnknownError,
    SegmentsError,
    StorageAccessError,
    StorageUnavailableError,
)
from airflow_provider_segments.text import escape, for_message

if TYPE_CHECKING:
    from airflow_provider_segments.core.table import SegmentStore, Table

_T = TypeVar("_T")

DONE, FAILED, USAGE, UNKNOWN, UNAVAILABLE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 4, 130, 141


class UsageError(Exception):
    """The arguments do not fit together."""


@dataclass(slots=True)
class Call:
    """One call of a command: its arguments, its store (opened when first asked for), and where it prints."""

    args: argparse.Namespace
    out: Output
    _open: Callable[[argparse.Namespace], SegmentStore] = field(repr=False)
    _store: SegmentStore | None = None
    makes_cluster: bool = False
    failures: dict[str, SegmentsError] = field(default_factory=dict)
    exit_code: int = DONE

    @property
    def store(self) -> SegmentStore:
        """The store of the command's connection. Raises :class:`ClusterNotFoundError` for a cluster that was never
        made, unless the command makes it."""
        if self._store is None:
            self._store = self._open(self.args)
            if not self.makes_cluster:
                self._store.cluster.check_made()
        return self._store

    def each_table(self, names: Iterable[str], work: Callable[[Table], _T]) -> dict[str, _T]:
        """Do ``work`` to each table and go on past one that fails: the command fails when all have had their turn."""
        done: dict[str, _T] = {}
        for name in names:
            try:
                done[name] = work(self.store.table(name))
            except MetadataUnavailableError:
                raise
            except SegmentsError as error:
                self.failures[name] = error
        return done

    def note(self, text: str) -> None:
        """A remark for a person, kept out of what programs read."""
        if not self.out.as_json:
            print(escape(text), file=sys.stderr)

    def close(self) -> None:
        """End the store's session, if there is one."""
        if self._store is not None:
            self._store.close()


def run(command: Command, args: argparse.Namespace, open_store: Callable[[argparse.Namespace], SegmentStore]) -> int:
    """Run ``command`` and return its exit code. Errors of this package become one line, and no traceback."""
    _quiet_libraries(debug=args.debug)
    call = Call(args, Output(as_json=args.json), open_store, makes_cluster=command.makes_cluster)
    try:
        try:
            action_of(command)(call)
            sys.stdout.flush()
        finally:
            call.close()
    except BrokenPipeError:
        return _leave_pipe()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (SegmentsError, UsageError) as error:
        if args.debug:
            traceback.print_exc()
        print_error(error, as_json=args.json)
        return exit_code(error)
    for name, failure in call.failures.items():
        print(f"error: {for_message(f'{name}: {failure}')}", file=sys.stderr)
    return max(map(exit_code, call.failures.values()), default=call.exit_code)


def print_error(error: Exception, *, as_json: bool) -> None:
    """Say on standard error what went wrong: one line, for people or as JSON."""
    message = for_message(str(error))
    if not as_json:
        print(f"error: {message}", file=sys.stderr)
        return
    told = {"type": type(error).__name__, "message": message, "exit_code": exit_code(error)}
    for name in ("rule", "table", "entry_id", "hint"):
        if value := getattr(error, name, None):
            told[name] = for_message(value)
    print(json.dumps({"error": told}), file=sys.stderr)


def action_of(command: Command) -> Callable[[Call], None]:
    """The function that ``command`` runs."""
    module, _, name = command.action.rpartition(":")
    action: Callable[[Call], None] = getattr(importlib.import_module(f"{__package__}.{module or 'actions'}"), name)
    return action


def exit_code(error: Exception) -> int:
    """The exit code that says what kind of failure ``error`` is."""
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, OutcomeUnknownError):
        return UNKNOWN
    unavailable = MetadataUnavailableError | StorageUnavailableError | StorageAccessError
    return UNAVAILABLE if isinstance(error, unavailable) else FAILED


def _leave_pipe() -> int:
    """Whoever read our output has gone. Python flushes standard output once more at exit: let it go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


def _quiet_libraries(*, debug: bool) -> None:
    """Without a logging configuration Python prints warnings of kazoo and boto3 between our lines."""
    if debug:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        return
    for name in ("kazoo", "boto3", "botocore", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
