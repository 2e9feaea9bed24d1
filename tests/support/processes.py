"""What other processes show."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


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
