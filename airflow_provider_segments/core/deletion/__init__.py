"""Two-phase deletion of stored objects (Pulsar PIP-186): mark, then delete what nobody needs any more."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_segments.core.deletion import (
        consumer as consumer,
    )
    from airflow_provider_segments.core.deletion import (
        mark as mark,
    )
    from airflow_provider_segments.core.deletion import (
        mark_by_hand as mark_by_hand,
    )
    from airflow_provider_segments.core.deletion import (
        queue as queue,
    )
    from airflow_provider_segments.core.deletion import (
        reconcile as reconcile,
    )


def __getattr__(name: str) -> ModuleType:
    """Load a module when it is first asked for: a command that needs few of them starts at once."""
    if name.startswith("_"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")
