"""Messages that were forged, altered or damaged: nothing that should live is touched, and each of them ends.

Around one legitimate message stands everything that must live: other segments of the table, visible and hidden, another
table's segment of the same names, the objects of a push in progress that are not registered yet, and objects of others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from airflow_provider_segments.core.deletion.in_use import TableUse
from airflow_provider_segments.core.deletion.messages import DeadLetters, UnreadableLetters, encode_dead
from airflow_provider_segments.core.model.ledger import (
    LedgerComponent,
    LedgerType,
    OffloadContext,
    SweepRequest,
    encode,
    owner_metadata,
)
from airflow_provider_segments.core.storage.base import OwnedOutcome
from airflow_provider_segments.core.zookeeper import Create, Delete
from airflow_provider_segments.exceptions import CorruptRecordError
from tests.deletion.support import LATER, FaultyStore, World, batch_of
from tests.support.owned import remove
from tests.support.tables import HOUR_MS

UUID = "00000000-0000-4000-8000-000000000001"
FAR = 4_000_000_000_000

Change = Callable[["Scene", dict[str, Any]], None]


class Scene:
    """``doomed`` is the one object that a deletion may touch; ``living`` is everything else."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.table = world.table("t")
        self.other = world.table("u")
        self.first = world.push(self.table, ["a", "b"])
        self.second = world.push(self.table, ["c"], ["b"])  # b is hidden, and kept for a revert
        self.foreign_entry = world.push(self.other, ["a", "b"])
        self.open = self.table.start().entry_id
        ticket = self.table.open_stage(self.open)
        self.unregistered = world.write(self.table, ticket, ["n"])
        self.generation = world.generation(self.table, self.first)
        world.put(world.store.storage, f"t/{self.first}/foreign", {})
        world.put(world.store.storage, f"t/{self.first}/elses", owner_metadata("x", "elses", "somebody"))
        world.offload(self.table, {"b", "c"}, UUID)
        (self.doomed,) = [url for url in world.objects("t") if "/a.build" in url]
        world.mark(self.table, {"a"})
        (self.message,) = world.pending_paths()
        self.living = self.now(without=self.doomed)
        assert len(self.living) == 9

    def take_message(self) -> bytes:
        """The legitimate message, out of the queue."""
        session = self.world.store.session
        node = session.get(self.message)
        assert node is not None
        session.commit([Delete(self.message, node.version)])
        return node.data

    def restore(self) -> None:
        """Put the object back that the legitimate message is about."""
        key = f"t/{self.first}/{of('a')}"
        if key not in self.world.stored():
            self.world.put(self.world.store.storage, key, owner_metadata("t", "a", self.generation))

    def now(self, *, without: str = "") -> Mapping[str, Any]:
        found = self.world.objects("t", "u")
        return {url: info for url, info in found.items() if url != without}

    def check_living(self) -> None:
        assert self.now(without=self.doomed) == self.living
        assert set(self.table.snapshot().names) == {"c"} and set(self.other.snapshot().names) == {"a", "b"}

    def offloaded(self) -> dict[str, str]:
        context = OffloadContext.at(self.world.store.tiered.uri, UUID)  # type: ignore[union-attr]
        return [context.driver, context.bucket, context.uuid]  # type: ignore[return-value]


@pytest.fixture
def scene(make_world: Callable[..., World], kind: str) -> Scene:
    return Scene(make_world(kind, tiered=True))


def ledger(**changes: Any) -> Change:
    """Alter fields of the message: segment, file, bytes, attempts, error, first_ms by position."""
    places = ("segment", "file", "bytes", "attempts", "error", "first_ms")

    def change(scene: Scene, batch: dict[str, Any]) -> None:
        whole = [*batch["ledgers"][0], *[0, 0, "", 0][len(batch["ledgers"][0]) - 2 :]]
        for name, value in changes.items():
            whole[places.index(name)] = value(scene) if callable(value) else value
        batch["ledgers"] = [whole]

    return change


def head(**changes: Any) -> Change:
    """Alter fields that all messages of the batch share."""

    def change(scene: Scene, batch: dict[str, Any]) -> None:
        batch.update({name: value(scene) if callable(value) else value for name, value in changes.items()})

    return change


def of(name: str) -> str:
    return f"{name}.build.1.parquet"


MALFORMED, MISMATCH, STALE, GONE, DELETED, WAITING, DEAD = (
    "malformed", "mismatch", "stale", "already_gone", "deleted", "waiting", "dead",
)  # fmt: skip

LEDGERS: dict[str, tuple[Change, str]] = {
    "segment: another of the table": (ledger(segment="b"), MISMATCH),
    "segment: one that never was": (ledger(segment="never"), MISMATCH),
    "segment: empty": (ledger(segment=""), MALFORMED),
    "segment: climbs": (ledger(segment="../../a"), MALFORMED),
    "segment: a number": (ledger(segment=7), MALFORMED),
    "segment: with a quote, to forge metadata": (ledger(segment='a","table":"t'), MALFORMED),
    "file: of a hidden segment": (ledger(file=of("b")), STALE),
    "file: of a hidden segment, with its name": (ledger(segment="b", file=of("b")), STALE),
    "file: of a foreign object": (ledger(file="foreign"), MISMATCH),
    "file: of an object that names another table": (ledger(file="elses", segment="elses"), MISMATCH),
    "file: one that never was": (ledger(file="never"), GONE),
    "file: climbs to another entry": (ledger(file=lambda scene: f"../{scene.second}/{of('c')}"), MALFORMED),
    "file: climbs to another table": (ledger(file=lambda scene: f"../../u/{scene.foreign_entry}/{of('a')}"), MALFORMED),
    "file: climbs in a detour": (ledger(file=f"x/../{of('b')}"), MALFORMED),
    "file: ..": (ledger(file=".."), MALFORMED),
    "file: .": (ledger(file="."), MALFORMED),
    "file: absolute": (ledger(file="/etc/passwd"), MALFORMED),
    "file: empty": (ledger(file=""), MALFORMED),
    "file: NUL": (ledger(file=f"{of('b')}\x00"), MALFORMED),
    "file: line break": (ledger(file=f"{of('b')}\n"), MALFORMED),
    "file: back slash": (ledger(file=f"..\\{of('b')}"), MALFORMED),
    "file: percent": (ledger(file="%2e%2e%2fb"), MALFORMED),
    "file: too long": (ledger(file="x" * 300), MALFORMED),
    "file: hidden by a dot": (ledger(file=".tmp"), MALFORMED),
    "file: not ASCII": (ledger(file="\uff41.build.1.parquet"), MALFORMED),
    "file: null": (ledger(file=None), MALFORMED),
    "bytes: negative": (ledger(bytes=-1), MALFORMED),
    "bytes: other": (ledger(bytes=999), DELETED),
    "attempts: negative": (ledger(attempts=-5), MALFORMED),
    "attempts: out of range": (ledger(attempts=10**7), MALFORMED),
    "attempts: too many": (ledger(attempts=500), DELETED),
    "error: long": (ledger(error="x" * 100_000), DELETED),
    "first_ms: odd": (ledger(first_ms=-1), DELETED),
}

HEADS: dict[str, tuple[Change, str]] = {
    "table: another one": (head(table="u"), GONE),
    "table: another one, whole": (
        head(
            table="u",
            entry_id=lambda scene: scene.foreign_entry,
            generation=lambda scene: scene.world.generation(scene.other, scene.foreign_entry),
        ),
        STALE,
    ),
    "table: another one's live segment under this generation": (
        head(table="u", entry_id=lambda scene: scene.foreign_entry),
        MALFORMED,
    ),
    "table: one that never was": (head(table="never"), GONE),
    "table: climbs": (head(table="../u"), MALFORMED),
    "table: empty": (head(table=""), MALFORMED),
    "table: null": (head(table=None), MALFORMED),
    "entry: another one": (head(entry_id=lambda scene: scene.second), MALFORMED),
    "entry: climbs": (head(entry_id=".."), MALFORMED),
    "entry: upper case": (head(entry_id=lambda scene: scene.first.upper()), MALFORMED),
    "generation: another attempt": (head(generation=lambda scene: f"{scene.generation[:-1]}2"), MISMATCH),
    "generation: another birth": (head(generation=lambda scene: f"{scene.first}:1:build:1"), MISMATCH),
    "generation: another stager": (head(generation=lambda scene: scene.generation.replace("build", "bulid")), MISMATCH),
    "generation: empty": (head(generation=""), MALFORMED),
    "generation: of another entry": (head(generation=f"{UUID}:1:build:1"), MALFORMED),
    "component: cursor without an id": (head(component="Managed-Cursor"), MALFORMED),
    "component: cursor": (head(component="Managed-Cursor", component_id="c"), GONE),
    "component: unknown": (head(component="Managed-Everything"), MALFORMED),
    "component id: on segment data": (head(component_id="c"), MALFORMED),
    "component id: climbs": (
        head(component="Managed-Cursor", component_id=lambda scene: f"../{scene.second}"),
        MALFORMED,
    ),
    "type: offloaded without a context": (head(ledger_type="Offload-Ledger"), MALFORMED),
    "type: primary with a context": (head(offload=lambda scene: scene.offloaded()), MALFORMED),
    "offload: of this table": (head(ledger_type="Offload-Ledger", offload=lambda scene: scene.offloaded()), GONE),
    "offload: another bucket": (head(ledger_type="Offload-Ledger", offload=["s3", "elsewhere", UUID]), DEAD),
    "offload: uuid climbs": (head(ledger_type="Offload-Ledger", offload=["s3", "b", "../.."]), MALFORMED),
    "format: of the past": (head(format=1), MALFORMED),
    "at: the far future": (head(at_ms=FAR), DELETED),
    "at: the past": (head(at_ms=0), DELETED),
    "at: text": (head(at_ms="now"), MALFORMED),
    "reason: long": (head(reason="x" * 500_000), DELETED),
    "reason: of lines": (head(reason="a\nWARNING nothing to see"), DELETED),
    "an unknown field": (head(force=True, delete="everything"), DELETED),
    "no messages": (head(ledgers=[]), ""),
    "messages: not a list": (head(ledgers={"a": 1}), MALFORMED),
}


@pytest.mark.parametrize("alterations", [LEDGERS, HEADS], ids=["a message", "what a batch shares"])
def test_whatever_field_is_altered_nothing_that_lives_is_touched(
    scene: Scene, alterations: Mapping[str, tuple[Change, str]], caplog: pytest.LogCaptureFixture
) -> None:
    """One field of a legitimate message at a time; the object that it was about is put back every time."""
    legitimate = scene.take_message()
    for name, (change, expected) in alterations.items():
        caplog.clear()
        try:
            _check_alteration(scene, legitimate, change, expected, caplog)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def _check_alteration(
    scene: Scene, legitimate: bytes, change: Change, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = scene.world
    scene.restore()
    world.alter(world.enqueue(legitimate), lambda batch: change(scene, batch))
    with caplog.at_level(logging.WARNING, "airflow_provider_segments.security"):
        report = world.with_settings(max_retry_delete_count=1).drain_all()
    scene.check_living()
    endings = {what for what, _ in report.counts} - {"waiting", "failed"}
    assert endings == ({expected} if expected else set())
    assert (scene.doomed not in scene.now()) == (expected == DELETED)
    logged = [record for record in caplog.records if record.name == "airflow_provider_segments.security"]
    assert bool(logged) == (expected == MISMATCH)
    assert all(scene.first in record.getMessage() for record in logged)


def test_another_tables_live_segment_is_stale_and_its_leftover_a_mismatch(scene: Scene) -> None:
    """The victim's message, well-formed in every field, sent by somebody else: in use. And an object that lies under
    the attacker's own prefix but says that it is the victim's stays too."""
    world = scene.world
    generation = world.generation(scene.other, scene.foreign_entry)
    world.enqueue(batch_of("u", scene.foreign_entry, generation, "a", "b"))
    key = f"t/{scene.first}/{of('stolen')}"
    remove(world.store.storage, key)
    world.put(world.store.storage, key, owner_metadata("u", "stolen", generation))
    scene.living = scene.now(without=scene.doomed)
    world.enqueue(batch_of("t", scene.first, scene.generation, "stolen"))
    report = world.drain_all()
    assert (report.total(STALE), report.total(MISMATCH), report.total(DELETED)) == (2, 1, 1)
    scene.check_living()


def test_objects_of_a_push_that_is_not_registered_yet_wait_and_then_live(scene: Scene) -> None:
    """The message is right in every field: the objects are there, nobody has registered them. But their entry is
    IN_PROGRESS, so somebody may."""
    world = scene.world
    world.enqueue(batch_of("t", scene.open, world.generation(scene.table, scene.open), "n"))
    assert world.drain().total(WAITING) == 1
    scene.check_living()
    ticket = scene.table.open_stage(scene.open)
    assert ticket.attempt == 2
    scene.table.stage(ticket, world.write(scene.table, ticket, ["n"]))
    scene.table.end(scene.open)
    world.hand.advance(LATER)
    # What the first attempt left is not needed any more; the second one's object of the same name is.
    assert world.drain().total(DELETED) == 1
    assert set(scene.table.snapshot().names) == {"c", "n"}
    assert f"t/{scene.open}/n.build.2.parquet" in world.stored()


def test_a_forged_message_about_a_registered_segment_ends_stale_whatever_time_it_says(scene: Scene) -> None:
    """A mark and its removal are one transaction, so a message about what is registered was never one."""
    world = scene.world
    for at_ms in (world.hand.now_ms, FAR, 0, -FAR):
        generation = world.generation(scene.table, scene.second)
        world.enqueue(batch_of("t", scene.second, generation, "c", at_ms=at_ms))
    report = world.drain_all()
    assert report.total(STALE) == 4
    scene.check_living()


def test_no_field_of_a_message_gets_round_a_lease(scene: Scene) -> None:
    """Which leases a message waits for is decided by the zxid at which its znode was made. Nothing in the payload says
    it, and a change of the payload does not change it."""
    world = scene.world
    fresh = world.push(scene.table, ["x"])
    with scene.table.snapshot() as taken:
        (key,) = [key for key in taken.files if fresh in key]
        world.mark(scene.table, {"x"})
        (path,) = [path for path in world.pending_paths() if path != scene.message]
        for change in (
            {"at_ms": 0}, {"at_ms": FAR}, {"reason": ""}, {"zxid": 1, "marked": 0},
        ):  # fmt: skip
            world.alter(path, lambda batch, change=change: batch.update(change))  # type: ignore[misc]
            assert world.drain().total(WAITING) == 1
            world.hand.advance(LATER)
            taken.check_lease()
            assert world.store.storage.head(key) is not None
        world.enqueue(batch_of("t", fresh, world.generation_of_key(key), "x"))
        assert world.drain().total(WAITING) == 2
        assert world.store.storage.head(key) is not None
    world.hand.advance(LATER)
    assert world.drain().total(DELETED, GONE) == 2
    assert world.store.storage.head(key) is None


def test_a_name_that_is_used_again_is_safe_from_the_old_message(make_world: Callable[..., World], kind: str) -> None:
    """T2: a new push has a segment of the old name. Its object is another one, and says so."""
    world = make_world(kind)
    table = world.table(kind="REFRESH", replacedSegmentsRetentionPeriod="1h")
    first = world.push(table, ["a"])
    old = world.generation(table, first)
    second = world.push(table, ["b"], ["a"])
    world.hand.advance(2 * HOUR_MS)
    for _ in range(3):
        table.cleanup()
    third = world.push(table, ["a"], ["b"])
    world.enqueue(batch_of("t", third, old, "a"))  # not even well-formed: the generation is another entry's
    world.enqueue(batch_of("t", third, f"{third}:1:build:1", "a"))
    world.enqueue(batch_of("t", first, old, "a"))
    before = {url: info for url, info in world.objects().items() if third in url or second in url}
    report = world.drain_all()
    assert report.total(MALFORMED) == 1 and report.total(STALE) == 1
    assert {url: info for url, info in world.objects().items() if first not in url} == before
    assert not [key for key in world.stored() if first in key]
    assert set(table.snapshot().names) == {"a"}


def test_a_key_that_was_written_again_by_another_push_is_a_mismatch(world: World) -> None:
    """The same key, the same segment name, another generation: the old message no longer means it."""
    table = world.table()
    entry_id = world.push(table, ["a"])
    generation = world.generation(table, entry_id)
    world.mark(table, {"a"})
    (key,) = world.stored()
    remove(world.store.storage, key)
    world.put(world.store.storage, key, owner_metadata("t", "a", f"{generation[:-1]}9"))
    assert world.drain().total(MISMATCH) == 1
    assert world.stored() == {key}


def test_forged_names_in_the_queue_stop_nobody(local: World) -> None:
    """Names of znodes that nobody of us makes: too many digits, no digits, no dots."""
    table = local.table()
    local.push(table, ["a"])
    local.mark(table, {"a"})
    paths = local.store.paths
    for name in ("9" * 5000, "x", "1.2", "...", "1." + "9" * 5000 + ".b", "٣.٣.b", "-1.-1.b"):
        if name != "...":
            local.store.session.ensure([f"{paths.deletion_retries}/{name}", f"{paths.sweeps}/{name}"])
        local.store.session.ensure([f"{paths.dead_letters}/{name}", f"{paths.deletion_claims}/{name}"])
    report = local.drain()
    assert report.total(DELETED) == 1
    assert local.store.queue.backlog().in_flight == 0 and local.store.queue.backlog().dead >= 7


def test_forged_sweeps_touch_nothing_that_lives(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A sweep of any prefix, at any time, only ever finds what nobody registered."""
    world = scene.world
    for entry_id in (scene.first, scene.second, scene.open, UUID, "../u", "", "x"):
        for table in ("t", "never", "../t"):
            request = SweepRequest(table, entry_id, "forged", 0, 0)
            name = f"{world.store.paths.sweeps}/0.{world.store.clock.new_id()}"
            world.store.session.commit([Create(name, encode(request))])
    for payload in (b"\xff", b"[" * 50_000, b"{}"):
        name = f"{world.store.paths.sweeps}/0.{world.store.clock.new_id()}"
        world.store.session.commit([Create(name, payload)])
    for _ in range(3):
        world.drain()
        world.hand.advance(LATER)
    scene.check_living()
    assert "Unreadable sweep request" in caplog.text and world.store.queue.backlog().dead > 3
    assert world.store.queue.backlog().sweeps == 1, "the one of the push in progress waits"


def test_forged_dead_letters_are_checked_like_any_message_when_they_are_redriven(scene: Scene) -> None:
    world = scene.world
    live = batch_of("t", scene.second, world.generation(scene.table, scene.second), "c")
    climbing = msgspec.structs.replace(live, table="../u")
    for number, batch in enumerate((live, climbing)):
        payload = encode_dead(DeadLetters(0, batch))
        world.store.session.commit([Create(f"{world.store.paths.dead_letters}/forged{number}.1", payload)])
    world.store.session.commit([Create(f"{world.store.paths.dead_letters}/broken.1", b"\xff[")])
    assert world.store.queue.redrive("forged0.1") == world.store.queue.redrive("forged1.1") == 1
    with pytest.raises(CorruptRecordError, match="can only be purged"):
        world.store.queue.redrive("broken.1")
    report = world.drain()
    assert (report.total(STALE), report.total(MALFORMED)) == (1, 1)
    scene.check_living()
    assert world.store.queue.purge("broken.1") == 1
    ((_, letters),) = world.store.queue.dead_letters()
    assert isinstance(letters, UnreadableLetters) and b"../u" in letters.payload, "kept for a person to look at"


def test_without_the_owner_check_a_forged_message_deletes_a_foreign_object(scene: Scene) -> None:
    """The revert test of the owner check: a store that does not compare loses what is not ours."""

    class Trusting(FaultyStore):
        def delete_owned(self, owners: Mapping[str, str]) -> OwnedOutcome:
            remove(self.inner, *owners)
            return OwnedOutcome(tuple(owners), (), {}, {})

    scene.world.alter(scene.message, lambda batch: ledger(file="foreign")(scene, batch))
    scene.world.with_storage(Trusting(scene.world.store.storage)).drain()
    with pytest.raises(AssertionError):
        scene.check_living()


def test_without_the_use_check_a_forged_message_deletes_a_live_segment(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert test of the registry check: the object does say what the message says."""
    monkeypatch.setattr(TableUse, "user_of", lambda *_: None)
    world = scene.world
    world.enqueue(batch_of("t", scene.second, world.generation(scene.table, scene.second), "c"))
    world.drain()
    with pytest.raises(AssertionError):
        scene.check_living()


def test_components_and_types_of_messages_are_the_ones_of_the_proposal() -> None:
    assert {one.value for one in LedgerType} == {"Ledger", "Offload-Ledger"}
    assert {one.value for one in LedgerComponent} == {"Managed-Ledger", "Managed-Cursor"}
