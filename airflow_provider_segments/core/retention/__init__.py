"""What a table no longer keeps: clean-up of its lineage, and time retention."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_segments.core.retention import (
        cleanup as cleanup,
    )
    from airflow_provider_segments.core.retention import (
        drop as drop,
    )
    from airflow_provider_segments.core.retention import (
        retain as retain,
    )


def __getattr__(name: str) -> ModuleType:
    """Load a module when it is first asked for: a command that needs few of them starts at once."""
    if name.startswith("_"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")
