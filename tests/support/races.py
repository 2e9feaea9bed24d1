"""Work for processes that race. Few imports: each process pays for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_segments.exceptions import ObjectExistsError

_barriers: list[Any] = []


def share_barrier(barrier: Any) -> None:
    """Initializer of a pool: what :func:`try_put` waits for."""
    _barriers.append(barrier)


def try_put(storage: Any, path: str, key: str, writer: str) -> bool:
    """Put the file when all the others are ready to; whether it was this one that won."""
    storage.head("warm/up")  # an S3 client is made before the race
    _barriers[0].wait(timeout=60)
    try:
        storage.put_file(Path(path), key, owner={"writer": writer})
    except ObjectExistsError:
        return False
    return True
