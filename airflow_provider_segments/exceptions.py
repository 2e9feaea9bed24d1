"""Every error this package raises on purpose.

Each class subclasses :class:`SegmentsError` and the nearest built-in. A remote write has three outcomes, and the
type says which: it returned (done), it raised :class:`RefusedError` or :class:`ContentionError` (nothing was
changed, clean-up is safe), or it raised :class:`OutcomeUnknownError` (the connection broke and the write may or
may not have landed: look before you touch anything).
"""

from __future__ import annotations

from airflow_provider_segments.text import for_message


class SegmentsError(Exception):
    """Base of every error of this package.

    Its message is printable text of at most a screen, and shows no secret: see :func:`~.text.for_message`.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(for_message(str(message)))


class InvalidNameError(SegmentsError, ValueError):
    """A table, segment, column or entry name that must not become a key or a path."""


class InvalidConfigError(SegmentsError, ValueError):
    """A table config or connection setting that cannot be used as it stands."""


class CorruptRecordError(SegmentsError, ValueError):
    """A stored record cannot be decoded. Never read as "no record": that would let the next write erase it."""


class NewerRecordError(CorruptRecordError):
    """A stored record of a format that a newer version of this package has written. It is left as it is; the message
    says which version reads it, as far as the record tells."""


class RecordTooLargeError(SegmentsError, ValueError):
    """A record that ZooKeeper could not hold. Raised before anything is sent."""


class TableNotFoundError(SegmentsError, LookupError):
    """The table has no config in this cluster."""


class ClusterNotFoundError(TableNotFoundError):
    """There is no such cluster: nothing was ever made under its name."""


class TableDroppedError(TableNotFoundError):
    """The table was dropped. Until its retention period is over, a revert brings it back."""


class EntryNotFoundError(SegmentsError, LookupError):
    """The table's lineage has no such entry."""


class WrongStoreError(SegmentsError, ValueError):
    """The object store that was opened is not the one that the cluster keeps its objects in. Nothing was changed."""


class ContentionError(SegmentsError, TimeoutError):
    """Other writers won every attempt of a compare-and-set. Nothing was changed; run it again."""


class MetadataUnavailableError(SegmentsError, ConnectionError):
    """No ZooKeeper server answered, or it refused the credentials. Nothing was changed."""


class AccessDeniedError(MetadataUnavailableError):
    """ZooKeeper answered, and these credentials may not do that. Nothing was changed."""


class OutcomeUnknownError(SegmentsError, ConnectionError):
    """The connection broke during a write that may have landed. Re-read before cleaning anything up."""


class RefusedError(SegmentsError, ValueError):
    """The protocol refused a request. Nothing was changed.

    ``rule`` is the stable, dash-separated name of the rule that refused (for programs and tests), ``table`` and
    ``entry_id`` say what it was about, and ``hint`` what to do next. The message holds all of them.
    """

    def __init__(self, rule: str, detail: str, *, table: str, entry_id: str | None = None, hint: str = "") -> None:
        self.rule = rule
        self.detail = detail
        self.table = table
        self.entry_id = entry_id
        self.hint = hint
        about = f"table {table!r}" + (f", entry {entry_id}" if entry_id else "")
        super().__init__(f"{about}: {detail} [{rule}]" + (f" {hint}" if hint else ""))


class ConfigRefusedError(RefusedError):
    """A table config was refused: the table is not this package's to manage. Nothing was changed.

    Rule: ``pinot-manages``.
    """


class StartRefusedError(RefusedError):
    """``start`` was refused: the new entry was not made."""


class StageRefusedError(RefusedError):
    """``stage`` was refused: the entry takes no (more) segments from this caller."""


class EndRefusedError(RefusedError):
    """``end`` was refused: the switch did not happen."""


class RevertRefusedError(RefusedError):
    """``revert`` was refused: what is visible did not change."""


class UnrevertRefusedError(RefusedError):
    """``unrevert`` was refused: what is visible did not change."""


class MarkRefusedError(RefusedError):
    """Marking for deletion was refused: some of the segments are needed. None was marked."""


class SnapshotRefusedError(RefusedError):
    """The asked-for snapshot can no longer be read in full."""


class UpsertRefusedError(RefusedError):
    """A version of an upsert table cannot be published, read or gone back to. Nothing was changed."""


class SourceUnavailableError(SegmentsError, ConnectionError):
    """A source did not take events that were to be added to it. Some of them may have been written."""


class RegionsDivergedError(SegmentsError):
    """Two regions were compared, and hold different rows that lag does not explain. The comparison itself succeeded."""


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


class LeaseLostError(SegmentsError, ConnectionError):
    """A reader's lease is gone (its ZooKeeper session ended): objects it still wants to read may be deleted now."""


class StorageError(SegmentsError, OSError):
    """An object store operation failed."""


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """The object is not there (a positive answer of the store, never a guess from 403 or a time-out)."""


class ObjectExistsError(StorageError, FileExistsError):
    """An object stands under a key that must be written once."""


class StorageAccessError(StorageError, PermissionError):
    """The store refused the credentials, or there are none."""


class StorageUnavailableError(StorageError, ConnectionError):
    """The store did not answer, or asked to slow down, after all retries."""


class JobFailedError(SegmentsError, RuntimeError):
    """A Spark job failed; the message is the job's own error, or says what its exit code means."""


class SourceDataError(SegmentsError, ValueError):
    """The input of a build cannot become segments (bad times, no rows, missing columns)."""


class NeedsSparkError(SourceDataError):
    """The engine without Spark does not read this input, or not surely as Spark does. Nothing was changed."""
