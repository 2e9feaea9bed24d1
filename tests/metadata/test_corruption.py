"""The corruption sweep: every kind of znode that this package writes, times every kind of damage.

Whatever is damaged, the outcome has a name: the call succeeds or raises an error of ours that is no traceback on the
command line, readers of the damaged table see what they saw or are refused, the other table is served, and no object
that was visible is deleted. The znode itself is left as it is, or moved, whole, to the dead letters.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_segments.cli.main import main
from airflow_provider_segments.core.doctor.examine import examine
from airflow_provider_segments.core.doctor.kinds import KINDS
from airflow_provider_segments.core.doctor.report import Severity
from airflow_provider_segments.core.locking import LockRequest
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import Create, Delete, SetData
from airflow_provider_segments.exceptions import CorruptRecordError, SegmentsError
from tests.deletion.support import LATER, World
from tests.metadata.everything import HOUR, OTHER, busy, kinds_with_content, paths_by_kind
from tests.support.tables import contents, everything

Harm = Callable[[bytes, random.Random], bytes]


def changed(change: Callable[[dict[str, Any]], object]) -> Harm:
    """Alter the record as JSON; a znode without JSON gets a record of its own."""

    def harm(data: bytes, _: random.Random) -> bytes:
        try:
            document = json.loads(data)
        except ValueError:
            document = {}
        if not isinstance(document, dict):
            document = {}
        change(document)
        return json.dumps(document).encode()

    return harm


HARMS: dict[str, Harm] = {
    "empty": lambda data, chance: b"",
    "random": lambda data, chance: chance.randbytes(max(len(data), 40)),
    "truncated": lambda data, chance: data[: chance.randrange(max(len(data) - 1, 1))],
    "wrong type": lambda data, chance: b'["what", 1]',
    "wrong types of all fields": changed(lambda fields: fields.update({key: {"x": [1.5]} for key in fields})),
    "not UTF-8": lambda data, chance: data[: len(data) // 2] + b"\xff\xfe" + data[len(data) // 2 :],
    "nested": lambda data, chance: b"[" * 200_000,
    "nested field": changed(lambda fields: fields.update(later=json.loads("[" * 400 + "]" * 400))),
    "huge": lambda data, chance: b'{"format":1,"id":"' + b"x" * 1_000_000 + b'"}',
    "newer format": changed(lambda fields: fields.update(format=99, needs="9.9")),
    "unknown field": changed(lambda fields: fields.update(later={"deep": [1]})),
    "{}": lambda data, chance: b"{}",
}
HARMLESS = {"unknown field", "nested field"}
"""Damage that a record is read over."""


@pytest.fixture
def world(make_world: Callable[..., World]) -> Iterator[World]:
    with busy(make_world("files", tiered=True)) as made:
        yield made


@pytest.fixture
def command(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., int]:
    """A command on the world's cluster; one that ends with a traceback fails the test."""
    monkeypatch.setenv("SEGMENTS_ZOOKEEPER", world.store.session.settings.hosts)
    monkeypatch.setenv("SEGMENTS_CLUSTER", world.store.paths.cluster)
    monkeypatch.setenv("SEGMENTS_STORAGE", world.store.storage.uri)
    monkeypatch.setenv("SEGMENTS_TIERED_URI", world.store.tiered.uri)  # type: ignore[union-attr]

    def run(*args: str) -> int:
        capsys.readouterr()
        code = main(list(args))
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        assert code in (0, 1, 10, 11), (args, code, said.err)
        assert code == 0 or said.err or args[0] == "doctor"
        return code

    return run


def test_a_cluster_with_everything_in_it_has_znodes_of_every_kind(world: World) -> None:
    """A kind that no run makes could not be swept, and one without a name would be foreign to the doctor."""
    found = paths_by_kind(world.store)
    missing = {kind.name for kind in KINDS} - found.keys()
    assert not missing, f"no znode of these kinds: {missing}"
    harmed = {kind for kind, paths in found.items() if any(world.store.session.get(path).data for path in paths)}  # type: ignore[union-attr]
    assert harmed >= kinds_with_content() - {"time chunk"}


def actions(world: World) -> dict[str, Callable[[], object]]:
    """What people and DAGs do, on the harmed table and on all."""
    table = world.store.table("t")
    request = LockRequest(group="h", task="t", interval=Interval(5 * HOUR, 6 * HOUR))
    return {
        "config": table.config,
        "lineage": table.lineage,
        "snapshot": table.snapshot,
        "states": table.segment_states,
        "leases": table.leases,
        "locks": lambda: (table.locks.read(), table.locks.acquire(request), table.locks.release("h", "t")),
        "start": lambda: table.start(identity="me"),
        "retain": table.retain,
        "reconcile": lambda: table.reconcile(grace_ms=0),
        "offload": lambda: table.offload(older_than_ms=0, primary_lag_ms=0),
        "drain": world.drain,
        "dead letters": lambda: list(world.store.queue.dead_letters()),
    }


COMMANDS = (
    ("tables",), ("lineage", "t"), ("snapshot", "t"), ("timeline", "t"), ("leases",), ("locks", "list", "t"),
    ("deletions",), ("dead-letters", "list"), ("retention", "--all", "--dry-run"), ("reconcile", "--all"), ("doctor",),
    ("storage", "show"),
)  # fmt: skip


class Swept:
    """What the sweep has seen: outcomes by kind of znode and damage."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.cases = 0

    def note(self, outcome: str) -> None:
        self.outcomes[outcome] += 1


def segments_of(world: World, table: str) -> set[tuple[str, str, str]]:
    """Table, entry and file of what readers see; an offload moves an object and changes none of them."""
    return {_mark(key) for key in world.store.table(table).snapshot().files}


def stored_segments(world: World) -> set[tuple[str, str, str]]:
    """The same of every object in both storages."""
    stores = [store for store in (world.store.storage, world.store.tiered) if store is not None]
    return {_mark(one.key) for store in stores for name in ("t", OTHER) for one in store.list(f"{name}/")}


def _mark(key: str) -> tuple[str, str, str]:
    table, entry_id, *_, file = key.split("/")
    return table, entry_id, file


def sweep_case(world: World, kind: str, path: str, harm: str, chance: random.Random, swept: Swept) -> None:
    """Damage one znode, do everything, look, and put the znode back."""
    session = world.store.session
    node = session.get(path)
    assert node is not None
    damaged = HARMS[harm](node.data, chance)
    if damaged == node.data:
        return
    swept.cases += 1
    shown = {name: segments_of(world, name) for name in ("t", OTHER)}
    session.commit([SetData(path, damaged, node.version)])
    report = examine(world.store.cluster)
    named = [one for one in report.findings if one.severity is Severity.ERROR and one.subject == path]
    if kind in kinds_with_content() - {"time chunk"} and harm not in HARMLESS | {"truncated", "random"}:
        assert named or (kind == "lineage" and harm == "newer format") or kind == "config", f"{kind}, {harm}: not named"
    for what, act in actions(world).items():
        try:
            act()
            swept.note("done")
        except SegmentsError as error:
            assert len(str(error)) <= 1_800 and str(error).isprintable()
            swept.note("named" if isinstance(error, CorruptRecordError) else type(error).__name__)
        except Exception as error:
            raise AssertionError(f"{kind}, {harm}: {what} raised {type(error).__name__}: {error}") from error
    assert segments_of(world, OTHER) == shown[OTHER], f"{kind}, {harm}: the other table"
    try:
        assert segments_of(world, "t") == shown["t"], f"{kind}, {harm}: readers see something else"
    except CorruptRecordError:
        swept.note("readers refused")
    gone = (shown["t"] | shown[OTHER]) - stored_segments(world)
    assert not gone, f"{kind}, {harm}: visible objects are gone: {gone}"
    restore(world, path, node.data, damaged, harm)


def restore(world: World, path: str, before: bytes, damaged: bytes, harm: str) -> None:
    """What was damaged is still there as it was, or among the dead letters; then put it back."""
    session = world.store.session
    now = session.get(path)
    if now is None:
        moved = [
            dead for dead in session.children(world.store.paths.dead_letters)
            if (node := session.get(f"{world.store.paths.dead_letters}/{dead}")) and node.data == damaged
        ]  # fmt: skip
        gone_on = harm in HARMLESS or "/CLAIMS/" in path or "/RETRY/" in path or not before
        assert moved or gone_on, f"{path}: the damaged record was acknowledged away"
        for dead in moved:
            session.commit([Delete(f"{world.store.paths.dead_letters}/{dead}", 0)])
        session.commit([Create(path, before)])
    else:
        known = harm in HARMLESS or now.data == damaged
        assert known or "/SEGMENTS/" not in path, f"{path} was written over"
        session.commit([SetData(path, before, now.version)])


def sweep(world: World, cases: list[tuple[str, str, str]]) -> Swept:
    swept, chance = Swept(), random.Random(11)
    for kind, path, harm in cases:
        if world.store.session.get(path) is None:
            continue  # the case before has let it go in the ordinary way
        sweep_case(world, kind, path, harm, chance, swept)
    return swept


def all_cases(world: World) -> list[tuple[str, str, str]]:
    """One znode of each kind, each with every damage; of the other table none."""
    cases = []
    for kind, paths in paths_by_kind(world.store).items():
        mine = [path for path in paths if not path.endswith(f"/{OTHER}") and f"/{OTHER}/" not in path]
        if mine:
            cases += [(kind, mine[len(mine) // 2], harm) for harm in HARMS]
    return cases


def test_a_sample_of_the_sweep(world: World) -> None:
    """Each kind with two damages, all damages in turn."""
    cases = all_cases(world)
    harms = list(HARMS)
    kinds = list(dict.fromkeys(kind for kind, _, _ in cases))
    chosen = [
        case
        for case in cases
        if harms.index(case[2]) in {kinds.index(case[0]) % len(harms), (kinds.index(case[0]) + 7) % len(harms)}
    ]
    swept = sweep(world, chosen)
    assert swept.cases > len(kinds) and swept.outcomes["named"] and swept.outcomes["done"]


@pytest.mark.slow
def test_the_whole_sweep(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    cases = all_cases(world)
    swept = sweep(world, cases)
    kinds = {kind for kind, _, _ in cases}
    with capsys.disabled():
        print(f"\n{swept.cases} cases of {len(kinds)} kinds x {len(HARMS)} damages, outcomes: {dict(swept.outcomes)}")
    assert swept.cases > 150 and swept.outcomes["named"] > 100


@pytest.mark.parametrize("kind", sorted(kinds_with_content()))
def test_no_command_shows_a_traceback(world: World, kind: str, command: Callable[..., int]) -> None:
    """Bytes that are no UTF-8, deep nesting and a newer format, in each kind of record."""
    [path, *_] = [path for path in paths_by_kind(world.store)[kind] if f"/{OTHER}" not in path]
    session = world.store.session
    for harm in ("not UTF-8", "nested", "newer format"):
        node = session.get(path)
        assert node is not None
        session.commit([SetData(path, HARMS[harm](node.data, random.Random(1)), node.version)])
        before = contents(world.store)
        for args in COMMANDS:
            command(*args)
        assert command("snapshot", OTHER) == 0
        assert contents(world.store) == before, "looking has changed something"
        now = session.get(path)
        assert now is not None
        session.commit([SetData(path, node.data, now.version)])


def test_a_lock_box_overwritten_with_an_empty_object_grants_nothing(world: World) -> None:
    """As an empty box it would grant a second EXCLUSIVE lock while the first one still publishes."""
    box = world.store.table("t").locks
    for payload in (b"{}", b'{"format":2}', b"", b"null"):
        node = world.store.session.get(box.path)
        assert node is not None
        world.store.session.commit([SetData(box.path, payload, node.version)])
        with pytest.raises(CorruptRecordError, match="not a readable lock box"):
            box.acquire(LockRequest(group="second", task="t", interval=Interval(0, HOUR)))


@pytest.mark.parametrize("harm", ["{}", "not UTF-8", "newer format"])
def test_damaged_roles_stop_what_makes_znodes_and_nobody_who_looks(world: World, harm: str) -> None:
    """Nobody knows who may see a new znode; who looks needs none."""
    session, paths = world.store.session, world.store.paths
    node = session.get(paths.roles)
    assert node is not None
    session.commit([SetData(paths.roles, HARMS[harm](node.data, random.Random(1)), node.version)])
    before = contents(world.store)
    with SegmentStore.connect(session.settings.hosts, paths.cluster, world.store.storage.uri) as store:
        assert store.table("t").snapshot().names == world.store.table("t").snapshot().names
        with pytest.raises(CorruptRecordError, match="ROLES"):
            store.table("t").start()
    assert contents(world.store) == before


def test_the_sweep_leaves_the_queue_as_it_was(world: World) -> None:
    """The ground of the sweep is sound: nothing is missing, and everything that is due is deleted in the end."""
    world.hand.advance(LATER)
    report = examine(world.store.cluster, all_objects=True)
    assert [one for one in report.findings if one.severity is Severity.ERROR] == []
    assert everything(world.store.session, world.store.paths.root)
