"""Work in a forked process that may be killed on the way."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

KILLED = 9
"""Exit code of a child that ends itself where ``kill -9`` is meant."""


def dies(work: Callable[[], object]) -> bool:
    """Run ``work`` in a child; whether it was killed before its end. Fails when ``work`` fails by itself."""
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
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, KILLED), f"the work failed by itself (exit {status})"
    return status == KILLED
