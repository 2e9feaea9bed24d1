"""One decoder for all records: whatever the bytes, the outcome is the record or an error that names the znode."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_segments.core.deletion import messages
from airflow_provider_segments.core.deletion.messages import DeadLetters, UnreadableLetters
from airflow_provider_segments.core.lineage import codec, guard
from airflow_provider_segments.core.lineage.entries import Lineage
from airflow_provider_segments.core.lineage.guard import Guard, Rewrite, Stage
from airflow_provider_segments.core.locking import state as boxes
from airflow_provider_segments.core.locking.counters import Counter
from airflow_provider_segments.core.locking.state import Box
from airflow_provider_segments.core.locking.types import Lock, LockGranularity, LockType
from airflow_provider_segments.core.model import ledger as ledgers
from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.ledger import (
    DeletionBatch,
    OffloadContext,
    PendingDeleteLedgerInfo,
    SweepRequest,
)
from airflow_provider_segments.core.model.segment import SegmentRecord, encode_record
from airflow_provider_segments.core.registry import leases, registry
from airflow_provider_segments.core.registry import shard as shards
from airflow_provider_segments.core.registry.leases import LeaseRecord
from airflow_provider_segments.core.registry.registry import Root
from airflow_provider_segments.core.tiering import records as offloads
from airflow_provider_segments.core.tiering.records import OffloadRecord
from airflow_provider_segments.core.zookeeper import Node, SetData
from airflow_provider_segments.exceptions import CorruptRecordError, NewerRecordError

ENTRY = "0c1b0a7e-0000-4000-8000-000000000001"
WHERE = "/c/SOME/znode"
LOCK = Lock("l", LockType.EXCLUSIVE, LockGranularity.TIME_CHUNK, 0, 10, "g", ("t",), 50, 7, 1, 2)
GUARD = Guard.new("me", stages={"build": Stage(1)}, own_locks=(HeldLock("g", "t", "l"),), rewrite=Rewrite(0, 1, 2, 3))
BATCH = DeletionBatch("t", ENTRY, f"{ENTRY}:7:build:1", (PendingDeleteLedgerInfo("a", "a.parquet", 10),))
SHARD = shards.parse_name("ALL", "/c/SEGMENTS/t/ALL", f"{ENTRY}.build.1.0")


def read_dead(payload: bytes) -> DeadLetters:
    found = messages.decode_dead(payload, WHERE)
    if isinstance(found, UnreadableLetters):
        raise found.error
    return found


def read_shard(payload: bytes) -> list[SegmentRecord]:
    return shards.decode(SHARD, payload, 0).records


RECORDS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "guard": (guard.encode(GUARD), lambda payload: guard.decode(Node(payload, 0, 1, 1, 0), ENTRY, WHERE)),
    "lock box": (
        boxes.encode(Box(7, (LOCK,), (Counter(0, 10, 3),), {"g\nt": (1, 2)})),
        lambda payload: boxes.decode(payload, WHERE),
    ),
    "registry root": (registry.encode_root(Root(5, 6)), lambda payload: registry.decode_root(payload, WHERE)),
    "shard": (shards.encode(ENTRY, 7, [encode_record(SegmentRecord("a", "a.parquet", 1, 2, 3))]), read_shard),
    "lease": (records.encode(LeaseRecord("me")), lambda payload: leases.decode(payload, WHERE)),
    "deletion batch": (ledgers.encode(BATCH), lambda payload: ledgers.decode_batch(payload, WHERE)[0]),
    "sweep": (
        ledgers.encode(SweepRequest("t", ENTRY, "reverted", 0, 1)),
        lambda payload: ledgers.decode_sweep(payload, WHERE),
    ),
    "dead letters": (messages.encode_dead(DeadLetters(5, BATCH)), read_dead),
    "offload": (
        offloads.encode(OffloadRecord(OffloadContext("file", "/x", ENTRY), (), 5)),
        lambda payload: offloads.decode(payload, WHERE),
    ),
    "lineage": (codec.encode(Lineage("t")), lambda payload: codec.decode(payload, "t", WHERE)),
}
OURS = [kind for kind in RECORDS if kind != "lineage"]
DAMAGE = {
    "empty": b"",
    "no object": b"[]",
    "an empty object": b"{}",
    "null": b"null",
    "not UTF-8": b'{"format":1,"owner":"\xff\xfe"}',
    "nested": b"[" * 200_000,
    "nested in a field": b'{"format":1,"id":"t","x":' + b"[" * 200_000,
    "huge": b'{"format":1,"x":"' + b"x" * 1_000_000,
    "a huge number": b'{"format":' + b"9" * 10_000 + b"}",
    "an infinite number": b'{"format":1e999}',
    "a format that is no number": b'{"format":"2"}',
    "a format that is true": b'{"format":true}',
    "no format": b'{"state":"OPEN"}',
    "nothing but a format": b'{"format":2}',
    "nothing but the other format": b'{"format":1}',
    "format zero": b'{"format":0}',
}


def rewritten(payload: bytes, **fields: Any) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(payload), **fields})


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_an_error_that_names_the_znode_and_is_no_longer_than_a_line(kind: str, damage: str) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        RECORDS[kind][1](DAMAGE[damage])
    assert (SHARD.path if kind == "shard" else WHERE) in str(caught.value)
    assert len(str(caught.value)) < 600 and str(caught.value).isprintable()


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_is_cut_off_anywhere_is_damage(kind: str) -> None:
    payload, read = RECORDS[kind]
    for length in range(len(payload)):
        with pytest.raises(CorruptRecordError):
            read(payload[:length])
    assert read(payload) is not None


@pytest.mark.parametrize("kind", OURS)
def test_a_record_without_any_one_of_its_fields_is_damage(kind: str) -> None:
    """Fields that a batch or a dead letter leaves out when they have their defaults are not there to begin with."""
    payload, read = RECORDS[kind]
    fields = msgspec.json.decode(payload)
    for name in fields:
        with pytest.raises(CorruptRecordError):
            read(msgspec.json.encode({key: value for key, value in fields.items() if key != name}))


@pytest.mark.parametrize("kind", OURS)
def test_a_newer_format_says_which_version_is_needed(kind: str) -> None:
    payload, read = RECORDS[kind]
    number = msgspec.json.decode(payload)["format"] + 1
    for newer in (rewritten(payload, format=number), b'{"shape":[],"format":%d}' % number):
        with pytest.raises(NewerRecordError, match=rf"format {number}, and this version reads format {number - 1}"):
            read(newer)
    with pytest.raises(NewerRecordError, match=r"Upgrade airflow-provider-segments to 2\.1 or later"):
        read(rewritten(payload, format=number, needs="2.1"))
    with pytest.raises(NewerRecordError, match=r"docs/operations.md says which version"):
        read(rewritten(payload, format=number, needs="\x1b[2J" * 100))


@pytest.mark.parametrize("kind", OURS)
def test_unknown_fields_are_read_over(kind: str) -> None:
    payload, read = RECORDS[kind]
    known, later = read(payload), read(rewritten(payload, later={"deep": [1, "x"]}))
    assert str(known).partition("unknown")[0] == str(later).partition("unknown")[0]


def test_unknown_fields_survive_a_rewrite_at_every_level() -> None:
    """A newer minor version has added optional fields; this one changes the record and must not lose them."""
    document = msgspec.json.decode(guard.encode(GUARD))
    for place in (document, document["stages"]["build"], document["own_locks"][0], document["rewrite"]):
        place["later"] = {"deep": [1, None, "é"], "?": "kept, too"}
    stored = guard.decode(Node(msgspec.json.encode(document), 0, 1, 1, 0), ENTRY, WHERE)
    changed = stored.guard.with_stage("other", Stage(4)).with_locks([HeldLock("g", "t", "m")])
    after = msgspec.json.decode(guard.encode(changed))
    document["seal"] = ""
    document["stages"]["other"] = after["stages"]["other"]
    document["own_locks"].append(msgspec.json.decode(msgspec.json.encode(HeldLock("g", "t", "m"))))
    assert after == document


def test_unknown_fields_of_a_lock_survive_the_renewal_of_another_one() -> None:
    document = msgspec.json.decode(boxes.encode(Box(7, (LOCK,), (), {})))
    document["locks"][0]["later"] = "kept"
    document["later"] = [1]
    box = boxes.decode(msgspec.json.encode(document), WHERE)
    other = msgspec.structs.replace(LOCK, lock_id="m")
    after = msgspec.json.decode(boxes.encode(boxes.put(box, other)))
    assert after["later"] == [1] and [lock.get("later") for lock in after["locks"]] == ["kept", None]


def test_new_fields_of_segments_survive_the_removal_and_the_change_of_others() -> None:
    known = len(SegmentRecord.__struct_fields__)
    whole = [SegmentRecord(name, f"{name}.parquet", 1, 2, 3) for name in "abc"]
    document = msgspec.json.decode(shards.encode(ENTRY, 7, [msgspec.json.encode(one) for one in whole]))
    document["segments"][1] += ["new", {"x": 1}]
    document["later"] = "kept"
    shard = shards.decode(SHARD, msgspec.json.encode(document), 3)
    assert shard.records == whole
    op = shard.with_records([msgspec.structs.replace(one, primary=False) for one in shard.records[1:]])
    assert isinstance(op, SetData)
    after = msgspec.json.decode(op.data)
    assert after["later"] == "kept" and after["segments"][0][known:] == ["new", {"x": 1}]
    read = shards.decode(SHARD, op.data, 4).records
    assert [(one.name, one.primary) for one in read] == [("b", False), ("c", False)]


def test_a_message_of_more_positions_than_are_known_is_kept_as_it_is() -> None:
    """The positions of a message are its format: what lies behind them would be lost when it is put off."""
    longer = rewritten(ledgers.encode(BATCH), ledgers=[["a", "a.parquet", 10, 0, "", 0, "later"], ["b", "b.parquet"]])
    batch, malformed = ledgers.decode_batch(longer, WHERE)
    assert [one.segment for one in batch.ledgers] == ["b"] and len(malformed) == 1
    kept = msgspec.json.decode(ledgers.only_malformed(longer, malformed))
    assert kept["ledgers"] == [["a", "a.parquet", 10, 0, "", 0, "later"]] and kept["table"] == "t"


@given(st.binary(max_size=300), st.sampled_from(sorted(RECORDS)), st.integers(0, 400), st.booleans())
def test_random_bytes_are_a_record_or_an_error_of_ours(noise: bytes, kind: str, at: int, over: bool) -> None:
    """Alone, written over a part of a record, or put in between."""
    payload, read = RECORDS[kind]
    for harmed in (noise, payload[:at] + noise + payload[at + (len(noise) if over else 0) :]):
        try:
            read(harmed)
        except CorruptRecordError as error:
            assert str(error).isprintable()


DECODERS = {"decode", "Decoder", "loads", "load", "convert", "JSONDecoder", "literal_eval", "eval"}
ALLOWED = {
    "core/model/records.py": "the decoder",
    "core/storage/base.py": "owner metadata of objects",
}
PASSED_ON = {"decode_as", "RecordDecoder"}
"""A decoder that is made elsewhere is only ever handed to these."""


def test_no_module_of_the_core_decodes_by_itself() -> None:
    """A decoder of its own has its own idea of damage: in the core, whatever is read goes through one."""
    root = Path(records.__file__).parents[1]
    found: list[str] = []
    for path in sorted(root.rglob("*.py")):
        place = f"core/{path.relative_to(root)}"
        if place in ALLOWED:
            continue
        tree = ast.parse(path.read_text())
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            called = ast.unparse(node.func)
            library = called.startswith(("msgspec.", "json.", "pickle.", "ast.")) and "(" not in called
            own = called.split(".")[0].isupper() and called.endswith(".decode")
            if library and node.func.attr in DECODERS - {"Decoder"}:
                found.append(f"{place}:{node.lineno}: {called}")
            if own and f"{called.split('.')[0]} = RecordDecoder(" not in path.read_text():
                found.append(f"{place}:{node.lineno}: {called}")
        if "pickle" in imported:
            found.append(f"{place}: pickle")
    assert not found, "decode these with core/model/records.py"
