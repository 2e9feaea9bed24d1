"""How the second phase behaves. Times are in milliseconds; the defaults are PIP-186's where it has one."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_segments.exceptions import InvalidConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionSettings:
    """``parallelism``: partitions of the queue. ``reconsume_later_ms``: how long a message waits for its next delivery.
    ``max_retry_delete_count``: failed deliveries beyond the first, so 10 means 11 attempts, before a message becomes a
    dead letter. ``max_lease_age_ms``: a reader's lease older than this holds up nothing any more (0: no limit).
    ``batches_at_once``: batches of up to 1,000 messages a consumer works on together.
    """

    parallelism: int = 4
    reconsume_later_ms: int = 600_000
    max_retry_delete_count: int = 10
    max_lease_age_ms: int = 86_400_000
    batches_at_once: int = 4

    def __post_init__(self) -> None:
        lowest = {"parallelism": 1, "batches_at_once": 1}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest.get(name, 0):
                raise InvalidConfigError(
                    f"deletion setting {name} must be a whole number of {lowest.get(name, 0)} or more, not {value!r}"
                )
        if self.parallelism > 256:
            raise InvalidConfigError(f"deletion setting parallelism is {self.parallelism}; at most 256 make sense")
