"""Work in forked processes, which may be killed on the way."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable

KILLED = 9
"""Exit code of a child that ends itself where ``kill -9`` is meant."""


def spawn(work: Callable[[], object]) -> int:
    """Run ``work`` in a child; returns its process id. The exit code is 1 when ``work`` raises."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def exit_codes(children: Iterable[int]) -> list[int]:
    """Wait for children to end; returns their exit codes."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def dies(work: Callable[[], object]) -> bool:
    """Run ``work`` in a child; whether it was killed before its end. Fails when ``work`` fails by itself."""
    [status] = exit_codes([spawn(work)])
    assert status in (0, KILLED), f"the work failed by itself (exit {status})"
    return status == KILLED
