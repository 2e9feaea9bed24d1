"""The lineage znode is, byte for byte, what Apache Pinot writes; and what cannot be read is never read as nothing."""

from __future__ import annotations

import base64
import gzip
import json
import random
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_segments.core.lineage import codec
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.zookeeper import znrecord
from airflow_provider_segments.core.zookeeper.znrecord import WRITE_LIMIT, ZNRecord
from airflow_provider_segments.exceptions import CorruptRecordError, RecordTooLargeError

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "pinot_znode_vectors.json").read_text())
ENTRY = "0c1b0a7e-0000-4000-8000-000000000001"


def lineage_of(document: dict[str, Any]) -> Lineage:
    """The lineage a vector describes, made by our own constructors."""
    entries = {}
    for entry in document["entries"]:
        made = LineageEntry(
            entry["entryId"],
            ",".join(entry["segmentsFrom"]),
            ",".join(entry["segmentsTo"]),
            EntryState[entry["state"]],
            entry["timestamp"],
            ("true",) if entry["autoCompleteLineageEntry"] else (),
        )
        entries[made.entry_id] = made
    return Lineage(document["id"], MappingProxyType(entries), document.get("customMap"))


def record(elements: object, table: str = "t") -> bytes:
    return json.dumps({"id": table, "listFields": {ENTRY: elements}}).encode()


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_every_vector_of_helix_is_written_byte_for_byte(vector: dict[str, Any]) -> None:
    assert codec.encode(lineage_of(vector["lineage"])) == base64.b64decode(vector["znode_base64"])


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_every_vector_of_helix_is_read_back_and_rewritten_unchanged(vector: dict[str, Any]) -> None:
    stored = base64.b64decode(vector["znode_base64"])
    read = codec.decode(stored, vector["lineage"]["id"])
    assert read == lineage_of(vector["lineage"])
    for entry in vector["lineage"]["entries"]:
        assert list(read.entries[entry["entryId"]].segments_from) == entry["segmentsFrom"]
        assert list(read.entries[entry["entryId"]].segments_to) == entry["segmentsTo"]
    assert codec.encode(read) == stored


def test_an_entry_is_written_with_four_elements() -> None:
    """Pinot 1.5.1 refuses to read a whole table's lineage for one entry of five. (Pinot scenarios 1 and 3.)"""
    entry = LineageEntry.of(ENTRY, (), ("s12",), EntryState.IN_PROGRESS, 5)
    stored = json.loads(codec.encode(Lineage("t").put(entry)))
    assert stored["listFields"] == {ENTRY: ["", "s12", "IN_PROGRESS", "5"]}


@pytest.mark.parametrize("extra", [("true",), ("true", "x"), (None,)])
def test_what_a_newer_pinot_wrote_behind_four_elements_is_kept(extra: tuple[str | None, ...]) -> None:
    """Through every state change, too. (Pinot scenarios 4 and 5.)"""
    read = codec.decode(record(["a,b", "c", "IN_PROGRESS", "99999", *extra]), "t")
    entry = read.entries[ENTRY]
    assert (entry.segments_from, entry.segments_to, entry.extra) == (("a", "b"), ("c",), extra)
    moved = read.put(entry.moved_to(EntryState.COMPLETED, 7, ["c"]))
    assert json.loads(codec.encode(moved))["listFields"][ENTRY] == ["a,b", "c", "COMPLETED", "7", *extra]


@pytest.mark.parametrize(
    ("joined", "names"), [("", ()), (",", ()), ("a,,b,", ("a", "b")), ("s6,s6,s8", ("s6", "s6", "s8"))]
)
def test_lists_are_split_as_pinot_splits_them(joined: str, names: tuple[str, ...]) -> None:
    """Empty tokens are dropped, order and duplicates kept, and the text is written back as it was. (Scenario 2.)"""
    read = codec.decode(record([joined, "x", "COMPLETED", "1"]), "t")
    assert read.entries[ENTRY].segments_from == names
    assert json.loads(codec.encode(read))["listFields"][ENTRY][0] == joined


def test_unknown_keys_are_ignored_and_missing_or_null_fields_read_as_empty() -> None:
    stored = b'{"id":"t","later":[1,{"x":2}],"mapFields":null,"listFields":{}}'
    assert codec.decode(stored, "t") == Lineage("t")


def padded(size: int) -> ZNRecord:
    """A record whose JSON has exactly ``size`` bytes, of text that compresses well."""
    empty = len(znrecord.to_json(ZNRecord("t", {"k": ""})))
    return ZNRecord("t", {"k": "x" * (size - empty)})


def test_1024000_bytes_stay_plain() -> None:
    written = znrecord.encode(padded(1_024_000))
    assert len(written) == 1_024_000 == WRITE_LIMIT
    assert written.startswith(b"{\n")


def test_1024001_bytes_become_gzip() -> None:
    """With the header that Java 16 and later writes up to the OS byte, and the very JSON inside."""
    big = padded(1_024_001)
    written = znrecord.encode(big)
    assert written[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
    assert gzip.decompress(written) == znrecord.to_json(big)
    assert znrecord.decode(written, "here") == big


def test_gzip_is_read_at_any_size() -> None:
    stored = base64.b64decode(VECTORS[1]["znode_base64"])
    assert codec.decode(gzip.compress(stored), "myTable_OFFLINE") == codec.decode(stored, "myTable_OFFLINE")


def test_a_record_that_gzip_cannot_make_fit_is_refused() -> None:
    noise = random.Random(1)
    names = [f"{noise.getrandbits(400):0100x}" for _ in range(25_000)]
    lineage = Lineage("t").put(LineageEntry.of(ENTRY, names, (), EntryState.COMPLETED, 1))
    with pytest.raises(RecordTooLargeError, match=r"'t' has 2,5\d\d,\d\d\d bytes, [\d,]+ with gzip; at most 1,024,000"):
        codec.encode(lineage)


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(znrecord, "EXPANDED_LIMIT", 1000)
    with pytest.raises(CorruptRecordError, match="expands to more than 1,000 bytes"):
        codec.decode(gzip.compress(b" " * 5000), "t")


GOOD = codec.encode(Lineage("t").put(LineageEntry.of(ENTRY, ["a"], ["b"], EntryState.COMPLETED, 1)))


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        pytest.param(b"", "not a readable ZNRecord", id="empty"),
        pytest.param(b"null", "not a readable ZNRecord", id="null"),
        pytest.param(b"[]", "not a readable ZNRecord", id="array"),
        pytest.param(b"{}", "not a readable ZNRecord", id="no id"),
        pytest.param(b'{"id":null}', "not a readable ZNRecord", id="null id"),
        pytest.param(b'{"id":"t"}', "it has no listFields", id="no lists"),
        pytest.param(b'{"id":"t","listFields":null}', "it has no listFields", id="null lists"),
        pytest.param(b'{"id":"t","listFields":{"later":[]}}', "'later' is not the id of an entry", id="no entry id"),
        pytest.param(b"[" * 100_000, "not a readable ZNRecord", id="nested"),
        pytest.param(b"127.0.0.1", "not a readable ZNRecord", id="not JSON"),
        pytest.param(GOOD[:-1], "not a readable ZNRecord", id="cut off"),
        pytest.param(GOOD + b"x", "not a readable ZNRecord", id="trailing"),
        pytest.param(b'{"id":"t","listFields":{"\xff":[]}}', "not a readable ZNRecord", id="not UTF-8"),
        pytest.param(gzip.compress(GOOD)[:-9], "the gzip data ends early", id="gzip cut off"),
        pytest.param(gzip.compress(GOOD)[:5], "the gzip data ends early", id="gzip header cut off"),
        pytest.param(b"\x1f\x8b\x08" + bytes(40), "not a readable ZNRecord", id="gzip damaged"),
        pytest.param(gzip.compress(GOOD)[:-8] + bytes(8), "not a readable ZNRecord", id="gzip checksum"),
        pytest.param(record([], table="u"), "the record says it belongs to 'u'", id="another table's"),
        pytest.param(record(["a", "b", "COMPLETED"]), "has 3 elements, expected 4 or more", id="three elements"),
        pytest.param(record(None), "has 0 elements", id="null entry"),
        pytest.param(record(["a", None, "COMPLETED", "1"]), "has a null element", id="null element"),
        pytest.param(record(["a", "b", "COMPLETE", "1"]), "in the unknown state 'COMPLETE'", id="unknown state"),
        pytest.param(record(["a", "b", "completed", "1"]), "in the unknown state", id="state in lower case"),
        pytest.param(record(["a", "b", "COMPLETED", "soon"]), "has the time 'soon'", id="bad time"),
        pytest.param(record(["a", "b", "COMPLETED", ""]), "has the time ''", id="no time"),
        pytest.param(record(["a", 1, "COMPLETED", "1"]), "not a readable ZNRecord", id="number in a list"),
    ],
)
def test_a_corrupt_payload_is_an_error_and_never_no_lineage(payload: bytes, problem: str) -> None:
    with pytest.raises(CorruptRecordError, match="lineage of table 't'") as caught:
        codec.decode(payload, "t")
    assert problem in str(caught.value)


def test_escapes_are_those_of_jackson() -> None:
    """Upper-case hexadecimal for control characters, surrogate pairs beyond the basic plane, everything else raw."""
    text = '"\\/\b\t\n\f\r\x00\x1f\x7f é中\u2028\U0001f600\uffff'
    escaped = '\\"\\\\/\\b\\t\\n\\f\\r\\u0000\\u001F\x7f é中\u2028\\uD83D\\uDE00\uffff'
    assert f'"id" : "{escaped}",\n' in znrecord.to_json(ZNRecord(text)).decode()


def test_a_backslash_before_what_looks_like_an_escape_stays_what_it_is() -> None:
    written = znrecord.to_json(ZNRecord("\\u001f\x1f"))
    assert b'"\\\\u001f\\u001F"' in written
    assert znrecord.decode(written, "here").id == "\\u001f\x1f"


def test_keys_are_sorted_by_utf16_code_units_as_javas_treemap_does() -> None:
    """U+FFFF sorts behind U+1F600 there, which starts with the unit D83D."""
    written = znrecord.to_json(ZNRecord("t", {"\uffff": "1", "\U0001f600": "2", "z": "3"})).decode()
    assert [written.index(text) for text in ('"3"', '"2"', '"1"')] == sorted(
        written.index(text) for text in ('"3"', '"2"', '"1"')
    )


def test_map_fields_keep_their_inner_order() -> None:
    """A lineage's custom map comes back in the order it was given, not sorted."""
    assert b'"z" : "1",\n      "a" : null' in znrecord.to_json(ZNRecord("t", {}, {"custom.map": {"z": "1", "a": None}}))


TEXT = st.text(max_size=12)
NULLABLE = st.none() | TEXT
RECORDS = st.builds(
    ZNRecord,
    id=TEXT,
    simple_fields=st.dictionaries(TEXT, NULLABLE, max_size=4),
    map_fields=st.dictionaries(TEXT, st.none() | st.dictionaries(TEXT, NULLABLE, max_size=3), max_size=3),
    list_fields=st.dictionaries(TEXT, st.none() | st.lists(NULLABLE, max_size=4), max_size=4),
)


@given(RECORDS)
def test_any_record_round_trips_and_is_plain_json(made: ZNRecord) -> None:
    written = znrecord.encode(made)
    assert znrecord.decode(written, "here") == made
    document = json.loads(written)
    assert document["listFields"] == made.list_fields
    assert list(document) == ["id", "simpleFields", "mapFields", "listFields"]
    assert znrecord.encode(znrecord.decode(written, "here")) == written
