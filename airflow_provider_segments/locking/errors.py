"""What locking raises. Refusals carry the rule, the table and a hint, like every other refusal of this package."""

from __future__ import annotations

from airflow_provider_segments.exceptions import RefusedError, SegmentsError


class InvalidLockRequestError(SegmentsError, ValueError):
    """A lock or allocation request that makes no sense, whatever the box holds."""


class LockRefusedError(RefusedError):
    """The lock box refused a request as an error of the caller: asking again will not help. Nothing was changed."""


class LockDeniedError(RefusedError):
    """Other groups hold locks that stand in the way. Nothing was changed; asking again later may succeed."""


class LockLostError(RefusedError):
    """A lock that was relied on is not held any more: released, never granted, or dropped long after its lease."""


class LockRevokedError(LockLostError):
    """A lock that was relied on was revoked, or taken after its lease. The message names who did it."""
