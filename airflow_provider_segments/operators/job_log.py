"""The log of a Spark job as a person reads it: levels kept, the command at DEBUG, and the job's own error at the end.

Spark's hook logs every line of ``spark-submit`` at INFO. A :class:`JobLog` stands between the hook and its logger,
gives each line the level that it was written with, and remembers what a failure is explained by.
"""

from __future__ import annotations

import re
import signal
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_segments.exceptions import InvalidConfigError, JobFailedError, SourceDataError, TableNotFoundError

_COMMAND = "Spark-Submit cmd: "
_OURS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) (.*)", re.DOTALL)
_SPARKS = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d ([A-Z]+) (.*)", re.DOTALL)
_NOISE = re.compile(r"WARNING: Using incubator|Picked up |NOTE: Picked up|Using Spark's default log4j|:: ")
_UNCAUGHT = re.compile(r'Exception in thread "[^"]*" (.*)', re.DOTALL)
_EXITED = "org.apache.spark.SparkUserAppException"  # the application has ended, having said why
_ERROR = re.compile(r"[A-Za-z_.]*(Error|Exception): ")
_LEVELS = {
    "TRACE": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "WARNING": "warning",
    "ERROR": "error",
    "FATAL": "critical",
    "CRITICAL": "critical",
}
_EXIT_CODE = re.compile(r"Error code is: (-?\d+)")
_NO_RETRY = tuple(kind.__name__ for kind in (SourceDataError, InvalidConfigError, TableNotFoundError))
"""Errors that no other attempt makes better."""

_NO_MASTER = "When running with master 'yarn'"
_YARN = "Airflow takes YARN for a Spark connection that is absent or names no master: give it one, such as local[2]."
_MEMORY = "Give it more (driver_memory, executor_memory), or more and smaller tasks."
_CODES = {
    2: "the command line of the job is wrong",
    50: "an executor had an error that nobody caught",
    51: "an executor had an error that nobody caught, and could not say which",
    52: f"Java ran out of memory. {_MEMORY}",
    53: "an executor could not make its folders on disk",
    126: "spark-submit cannot be run",
    127: "spark-submit, or the Java or Python that it needs, was not found",
}
_SIGNALS = {
    signal.SIGKILL: "killed (SIGKILL): by the machine or the container when memory ran out, most likely, by Airflow "
    f"when the task was ended, or by somebody. {_MEMORY}",
    signal.SIGTERM: "told to end (SIGTERM), by Airflow, by somebody, or because the machine went down",
    signal.SIGINT: "interrupted (SIGINT)",
    signal.SIGABRT: "ended by a crash of the JVM (SIGABRT); a file hs_err_pid*.log in its folder says where",
    signal.SIGSEGV: "ended by a crash of the JVM or of a native library (SIGSEGV)",
}


class JobLog:
    """A logger in place of that of Spark's hook: gives the lines of a job their levels, and keeps the error that the
    job itself has named last. Whatever else a logger can do is left to ``logger``."""

    def __init__(self, logger: Any) -> None:
        self._logger: Any = logger._logger if isinstance(logger, JobLog) else logger  # the same task, run again
        self._level = "info"
        self._said = ""
        self._uncaught = ""
        self._out_of_memory = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def info(self, message: str, *args: object) -> None:
        """Log a line with the level that it was written with."""
        level, text = self._read(message % args if args else message)
        getattr(self._logger, level)(text)

    def explain(self, error: AirflowException) -> Exception:
        """The exception of the task in place of Spark's hook's, which begins with the whole command."""
        code = _EXIT_CODE.search(str(error))
        if code is None:
            return error
        if self._said:
            kind = AirflowFailException if self._said.startswith(_NO_RETRY) else JobFailedError
            return kind(self._said)
        if self._out_of_memory:
            return JobFailedError(f"the job ran out of memory (OutOfMemoryError). {_MEMORY}")
        if self._uncaught:
            hint = f". {_YARN}" if _NO_MASTER in self._uncaught else ""
            return JobFailedError(f"the job could not be run: {self._uncaught}{hint}")
        return JobFailedError(f"the job was {explain_code(int(code[1]))}")

    def _read(self, text: str) -> tuple[str, str]:
        """Level and text of one line. A line that names no level belongs to the one before it."""
        if text.startswith(_COMMAND) or _NOISE.match(text):
            return "debug", text
        self._out_of_memory = self._out_of_memory or "OutOfMemoryError" in text
        ours = _OURS.fullmatch(text)
        if found := ours or _SPARKS.fullmatch(text):
            self._level = _LEVELS.get(found[1], "info")
            if ours and self._level in ("error", "critical") and _ERROR.match(found[2]):
                self._said = found[2]
            return self._level, found[2]
        if uncaught := _UNCAUGHT.fullmatch(text):
            self._level = "error"
            if not uncaught[1].startswith(_EXITED):
                self._uncaught = uncaught[1]
        return self._level, text


def explain_code(code: int) -> str:
    """What an exit code of ``spark-submit`` means. A negative one, or one from 129 on, is a signal."""
    number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    if number:
        known = _SIGNALS.get(number)  # type: ignore[call-overload]  # a number equals its signal
        return known or f"ended by signal {number}"
    return f"not done: spark-submit ended with code {code}" + (f": {_CODES[code]}" if code in _CODES else "")
