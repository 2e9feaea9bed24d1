"""Time and chance, injected: nothing below the faces reads a clock, sleeps or rolls dice by itself."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass


def system_now_ms() -> int:
    """Wall-clock time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """``now_ms``: wall clock in epoch milliseconds, for people and retention periods. ``monotonic`` and ``sleep`` are
    in seconds. ``uniform(a, b)`` spreads retries. ``new_id`` makes a random UUID string."""

    now_ms: Callable[[], int] = system_now_ms
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = random.uniform
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())


SYSTEM_CLOCK = Clock()
