"""Servers as processes of a test, and what other processes show."""

from __future__ import annotations

import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil


class ServerProcess(ABC):
    """A server in a folder of its own, killed at the end of the ``with``. A subclass begins it in :meth:`start`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> subprocess.Popen[bytes]:
        """Start the server."""

    def wait(self) -> None:
        """Wait until it serves."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = self.start()
        try:
            self.wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """Command lines of all processes that run meanwhile."""
    seen: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    seen.add(" ".join(process.cmdline()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
