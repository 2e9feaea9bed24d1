"""Replacing segments by others: start, stage, end and revert."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_segments.core.replacement import (
        end as end,
    )
    from airflow_provider_segments.core.replacement import (
        history as history,
    )
    from airflow_provider_segments.core.replacement import (
        overwrite as overwrite,
    )
    from airflow_provider_segments.core.replacement import (
        publish as publish,
    )
    from airflow_provider_segments.core.replacement import (
        revert as revert,
    )
    from airflow_provider_segments.core.replacement import (
        rules as rules,
    )
    from airflow_provider_segments.core.replacement import (
        stage as stage,
    )
    from airflow_provider_segments.core.replacement import (
        staged as staged,
    )
    from airflow_provider_segments.core.replacement import (
        start as start,
    )
    from airflow_provider_segments.core.replacement import (
        unrevert as unrevert,
    )


def __getattr__(name: str) -> ModuleType:
    """Load a module when it is first asked for: a command that needs few of them starts at once."""
    if name.startswith("_"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")
