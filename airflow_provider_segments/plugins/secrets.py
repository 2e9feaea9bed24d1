"""Keeping secrets out of what the page shows: people write them into table configs."""

from __future__ import annotations

from typing import Any

from airflow_provider_segments.text import MASK, is_secret_name, mask


def without_secrets(value: Any) -> Any:
    """Return plain data without the values whose names say that they are secret, and with addresses masked."""
    if isinstance(value, dict):
        return {key: MASK if is_secret_name(str(key)) else without_secrets(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(held) for held in value]
    return mask(value) if isinstance(value, str) else value
