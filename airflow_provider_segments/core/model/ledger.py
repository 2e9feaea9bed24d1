"""Ledgers and the messages that ask for their deletion (Pulsar PIP-186).

A ledger is one stored object of a table. A message, ``PendingDeleteLedgerInfo``, asks for the deletion of one ledger.
Messages travel in batches: all messages of a batch are about objects that one attempt of one push wrote to one kind of
storage, so the batch says once what they share.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.names import check_entry_id, check_segment_name, check_table_name
from airflow_provider_segments.core.model.records import Record, RecordDecoder, decode_as
from airflow_provider_segments.exceptions import CorruptRecordError, InvalidNameError, NewerRecordError

APPLICATION = "airflow-provider-segments"
"""``application`` in the owner metadata of every object this package writes."""

MAX_ATTEMPTS = 1_000_000
_FILE = re.compile(r"[A-Za-z0-9_=+@~-][A-Za-z0-9_.=+@~-]{0,254}")
_GENERATION = re.compile(r"[0-9a-f-]{36}:\d{1,19}:[A-Za-z0-9_=+@~-]{1,200}:\d{1,9}", re.ASCII)


class LedgerType(enum.Enum):
    """Where the ledger is: primary or tiered storage."""

    LEDGER = "Ledger"
    OFFLOAD_LEDGER = "Offload-Ledger"


class LedgerComponent(enum.Enum):
    """What the ledger holds: segment data, or consumer positions."""

    MANAGED_LEDGER = "Managed-Ledger"
    MANAGED_CURSOR = "Managed-Cursor"


class OffloadContext(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where copies in tiered storage are: ``driver`` (``s3`` or ``file``), ``bucket`` (the store's address without the
    driver), and the ``uuid`` of the offload that wrote them, which is a part of their keys."""

    driver: str
    bucket: str
    uuid: str

    @property
    def uri(self) -> str:
        """The tiered store's address."""
        return f"{self.driver}://{self.bucket}"

    @classmethod
    def at(cls, uri: str, uuid: str) -> OffloadContext:
        """The context of an offload to the store at ``uri``."""
        driver, _, bucket = uri.partition("://")
        return cls(driver, bucket, uuid)


class PendingDeleteLedgerInfo(
    msgspec.Struct, frozen=True, array_like=True, gc=False, omit_defaults=True, forbid_unknown_fields=True
):
    """One message of a batch: the segment, its object's file name below the prefix, and the object's bytes.
    ``attempts`` counts the deliveries that failed, ``error`` says why the last one did, ``first_ms`` when the first one
    did."""

    segment: str
    file: str
    bytes: int = 0
    attempts: int = 0
    error: str = ""
    first_ms: int = 0


class DeletionBatch(Record, frozen=True, omit_defaults=True, tag_field=records.FORMAT, tag=2):
    """Messages about the objects of one generation, which is one attempt of one push.

    ``component_id`` is a cursor's name. ``reason`` and ``at_ms`` are for people.
    """

    table: str
    entry_id: str
    generation: str
    ledgers: tuple[PendingDeleteLedgerInfo, ...]
    ledger_type: LedgerType = LedgerType.LEDGER
    component: LedgerComponent = LedgerComponent.MANAGED_LEDGER
    component_id: str = ""
    reason: str = ""
    at_ms: int = 0
    offload: OffloadContext | None = None

    @property
    def prefix(self) -> str:
        """The prefix of the objects' keys, in the store that ``ledger_type`` says."""
        if self.component is LedgerComponent.MANAGED_CURSOR:
            return f"{self.table}/_cursors/{self.component_id}/"
        return ledger_prefix(self.table, self.entry_id, self.offload)

    def owner(self, ledger: PendingDeleteLedgerInfo) -> dict[str, str]:
        """The owner metadata that the ledger's object must carry."""
        return owner_metadata(
            self.table, ledger.segment, self.generation, component=self.component, component_id=self.component_id
        )

    def with_ledgers(self, ledgers: tuple[PendingDeleteLedgerInfo, ...]) -> DeletionBatch:
        """The same batch with other messages."""
        return msgspec.structs.replace(self, ledgers=ledgers)


class SweepRequest(Record, frozen=True, tag_field=records.FORMAT, tag=2):
    """Asks for a look under an entry's prefix, not before ``not_before_ms``: what lies there and is not registered
    becomes messages. Deletes nothing itself."""

    table: str
    entry_id: str
    reason: str
    not_before_ms: int
    at_ms: int


def ledger_prefix(table: str, entry_id: str, offload: OffloadContext | None = None) -> str:
    """The prefix of the objects that a push wrote, or that an offload has copied."""
    return f"{table}/{entry_id}/{offload.uuid}/" if offload is not None else f"{table}/{entry_id}/"


def owner_metadata(
    table: str,
    segment: str,
    generation: str,
    *,
    component: LedgerComponent = LedgerComponent.MANAGED_LEDGER,
    component_id: str = "",
) -> dict[str, str]:
    """What every object says of itself: written with it, and compared before it is deleted (PIP-186)."""
    owner = {
        "application": APPLICATION,
        "component": component.value,
        "table": table,
        "segment": segment,
        "generation": generation,
    }
    return owner | {"component-id": component_id} if component_id else owner


def generation_of(entry_id: str, born: int, stager: str, attempt: int) -> str:
    """Tells the objects of one attempt of one push from those of every other, whatever their names."""
    return f"{entry_id}:{born}:{stager}:{attempt}"


_ENCODER = msgspec.json.Encoder()
_BATCH = RecordDecoder(DeletionBatch, "deletion message")
_SWEEP = RecordDecoder(SweepRequest, "sweep request")
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_LEDGER = msgspec.json.Decoder(PendingDeleteLedgerInfo)


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message of a batch that cannot be worked on, as it is stored, and why."""

    payload: bytes
    problem: str


def encode(message: DeletionBatch | SweepRequest) -> bytes:
    """The message as it is stored."""
    return records.encode(message)


def decode_sweep(payload: bytes, where: str) -> SweepRequest:
    """A sweep request. Raises :class:`CorruptRecordError`: it is not well-formed, or names what cannot be."""
    request = _SWEEP.decode(payload, where)
    try:
        check_table_name(request.table)
        check_entry_id(request.entry_id)
    except InvalidNameError as error:
        raise CorruptRecordError(f"{where}: not a sweep request ({error})") from error
    return request


def decode_batch(payload: bytes, where: str) -> tuple[DeletionBatch, list[Malformed]]:
    """A batch of the well-formed messages in ``payload``, and the others.

    Raises :class:`NewerRecordError`, and :class:`CorruptRecordError` when not even the part that all messages share is
    well-formed.
    """
    malformed: list[Malformed] = []
    try:
        batch = _BATCH.decode(payload, where)
    except NewerRecordError:
        raise
    except CorruptRecordError:
        batch, malformed = _one_by_one(payload, where)
    try:
        _check_head(batch)
    except InvalidNameError as error:
        raise CorruptRecordError(f"{where}: not a deletion message ({error})") from error
    good: list[PendingDeleteLedgerInfo] = []
    for ledger in batch.ledgers:
        if problem := _problem(ledger):
            malformed.append(Malformed(_ENCODER.encode(ledger), problem))
        else:
            good.append(ledger)
    return (batch if len(good) == len(batch.ledgers) else batch.with_ledgers(tuple(good))), malformed


def only_malformed(payload: bytes, malformed: Sequence[Malformed]) -> bytes:
    """The batch in ``payload`` with nothing but its malformed messages, for a person to look at."""
    fields = decode_as(_FIELDS, payload, "batch", "deletion message")
    return _ENCODER.encode({**fields, "ledgers": [msgspec.Raw(one.payload) for one in malformed]})


def _one_by_one(payload: bytes, where: str) -> tuple[DeletionBatch, list[Malformed]]:
    """The messages that can be decoded by themselves."""
    fields = decode_as(_FIELDS, payload, where, "deletion message")
    ledgers = decode_as(_RAWS, bytes(fields.get("ledgers", b"null")), where, "deletion message")
    head = _BATCH.decode(_ENCODER.encode({**fields, "ledgers": []}), where)
    good: list[PendingDeleteLedgerInfo] = []
    malformed: list[Malformed] = []
    for one in ledgers:
        try:
            good.append(decode_as(_LEDGER, bytes(one), where, "message"))
        except CorruptRecordError as error:
            malformed.append(Malformed(bytes(one), str(error)))
    return head.with_ledgers(tuple(good)), malformed


def _check_head(batch: DeletionBatch) -> None:
    check_table_name(batch.table)
    check_entry_id(batch.entry_id)
    if _GENERATION.fullmatch(batch.generation) is None or not batch.generation.startswith(f"{batch.entry_id}:"):
        raise InvalidNameError(f"generation {batch.generation[:80]!r} is not one of entry {batch.entry_id}")
    if batch.component_id:
        check_segment_name(batch.component_id)
    if batch.offload is not None:
        check_entry_id(batch.offload.uuid)
    if (batch.ledger_type is LedgerType.OFFLOAD_LEDGER) != (batch.offload is not None):
        raise InvalidNameError(f"a {batch.ledger_type.value} with offload context {batch.offload}")
    if (batch.component is LedgerComponent.MANAGED_LEDGER) == bool(batch.component_id):
        raise InvalidNameError(f"component {batch.component.value} with component id {batch.component_id!r}")


def _problem(ledger: PendingDeleteLedgerInfo) -> str:
    """Why the message is not well-formed; empty when it is. Names become keys and paths: they must not climb."""
    try:
        check_segment_name(ledger.segment)
    except InvalidNameError as error:
        return str(error)
    if _FILE.fullmatch(ledger.file) is None:
        return f"file {ledger.file[:80]!r} is not a plain name"
    if ledger.bytes < 0 or not 0 <= ledger.attempts <= MAX_ATTEMPTS:
        return "a count is out of range"
    return ""
