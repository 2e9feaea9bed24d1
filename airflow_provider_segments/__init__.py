"""Immutable table segments with atomic replacement and rollback, for Apache Airflow and Spark.

``from airflow_provider_segments import SegmentStore`` is what a caller needs. Airflow imports this package in every
process it starts, so the class is only loaded when somebody asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_segments.core.table import SegmentStore

__all__ = ["SegmentStore", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a public name. Raises :class:`AttributeError` for any other one."""
    if name == "SegmentStore":
        from airflow_provider_segments.core.table import SegmentStore

        return SegmentStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
