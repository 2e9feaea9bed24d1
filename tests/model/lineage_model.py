"""A model of one table: its lineage, guards, registry and root, and everybody who reads and writes them.

Each actor's steps are the ZooKeeper operations of the implementation, one to one and in its order; every transaction
names what it checks. Time is left out: a clean-up may come at any moment, which is more than any clock allows. Segments
are (entry, chunk, attempt); their names are (entry, chunk), so two attempts of one build use the same names.

``OFF`` guards can be switched off, to show that each of them is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from tests.model.explorer import Become

CHUNKS = (0, 1)

STAGE = "the guard is checked when a segment is staged"
SEAL = "end seals the entry before it looks at what is staged"
BORN = "a reader leaves out entries born after its lineage"
MARK = "the lineage says that an entry's from is being cleaned before the first segment goes"
REMOVAL = "the root remembers the lineage zxid of the last removal"
ORDER = "a reader reads the lineage before the chunks"
TO_GONE = "revert checks that what it hides is still registered"
LEASE = "deletion waits for older leases"
LEASE_FIRST = "a reader takes its lease before it reads the chunks"
ROOT_AGAIN = "a reader that takes its lease after its snapshot looks at the root again"
PUBLISH = "the guard is checked when a push is published in one transaction"
ALONE = "a push is published in one transaction only if no earlier attempt may have staged"
OTHERS = "a push is published in one transaction only if its other stagers are done"
ALL_GUARDS = frozenset(
    {STAGE, SEAL, BORN, MARK, REMOVAL, ORDER, TO_GONE, LEASE, LEASE_FIRST, ROOT_AGAIN, PUBLISH, ALONE, OTHERS}
)

IN_PROGRESS, COMPLETED, REVERTED = "IN_PROGRESS", "COMPLETED", "REVERTED"
OPEN, SEALED = "OPEN", "SEALED"

MIX = "a reader saw old and new at once"
GAP = "a reader missed a part of the table"
EMPTY = "a reader saw an empty table"
REVERTED_VISIBLE = "a reverted push's segment is visible"
INCOMPLETE = "a push has ended without a part of it"
OUTSIDE_TO = "a segment outside of to is visible after end"
DELETED_VISIBLE = "a revert shows data that was deleted"
STALE_VISIBLE = "old data is visible beside what replaced it"
OBJECT_GONE = "an object was deleted under a reader that holds a lease"

REST = 10
"""Attempts of the other stager are numbered from here."""

Segment = tuple[str, int, int]
Name = tuple[str, int]
Segments = frozenset[Segment]
Actor = Generator[Any, Any, None]


class Entry(NamedTuple):
    """A lineage entry. ``brought`` and ``replaced`` are the segments behind the names in ``to`` and ``from``."""

    name: str
    state: str
    replaced: Segments = frozenset()
    brought: Segments = frozenset()


class Guard(NamedTuple):
    """``attempt`` and ``done`` are of the stager that publishes, ``rest`` and ``rest_done`` of another one."""

    name: str
    state: str
    born: int
    version: int = 0
    attempt: int = 0
    done: bool = False
    completed: bool = False
    rest: int = 0
    rest_done: bool = False


class World(NamedTuple):
    """``truth`` is what readers should see, kept beside the system under test; ``past`` what it was at each zxid."""

    zxid: int = 0
    written: int = 0
    entries: tuple[Entry, ...] = ()
    cleaning: frozenset[str] = frozenset()
    guards: tuple[Guard, ...] = ()
    shards: frozenset[tuple[Segment, int]] = frozenset()
    removed_at: int = 0
    root: int = 0
    truth: Segments = frozenset()
    past: tuple[tuple[int, Segments], ...] = ()
    aborted: frozenset[str] = frozenset()
    leases: frozenset[tuple[str, int]] = frozenset()
    messages: frozenset[tuple[Segment, int]] = frozenset()
    objects: Segments = frozenset()
    bad: str | None = None


class Lineage(NamedTuple):
    """A lineage as it was read."""

    zxid: int
    entries: tuple[Entry, ...]
    cleaning: frozenset[str]


def base(*names: str) -> World:
    """A table that shows one old segment a chunk, of entries that have long left the lineage."""
    old = frozenset((name, chunk, 1) for name in names or ("o",) for chunk in CHUNKS)
    return World(shards=frozenset((segment, 0) for segment in old), truth=old, past=((0, old),), objects=old)


# --- what is visible, as readers decide it


def entry_of(entries: tuple[Entry, ...], name: str) -> Entry | None:
    return next((entry for entry in entries if entry.name == name), None)


def guard_of(world: World, name: str) -> Guard | None:
    return next((guard for guard in world.guards if guard.name == name), None)


def shows(entries: tuple[Entry, ...], segments: frozenset[Segment]) -> Segments:
    hidden: set[Name] = set()
    for entry in entries:
        hidden |= {segment[:2] for segment in (entry.replaced if entry.state == COMPLETED else entry.brought)}
    settled = {segment[0] for segment in segments} - {entry.name for entry in entries if entry.state != COMPLETED}
    return frozenset(segment for segment in segments if segment[0] in settled and segment[:2] not in hidden)


def violation(world: World) -> str | None:
    """What is wrong with a world, seen by somebody who sees everything at once."""
    if world.bad:
        return world.bad
    seen = shows(world.entries, frozenset(segment for segment, _ in world.shards))
    for segment in seen - world.truth:
        return REVERTED_VISIBLE if segment[0] in world.aborted else OUTSIDE_TO
    for segment in world.truth - seen:
        entry = entry_of(world.entries, segment[0])
        if entry is not None and segment not in entry.brought:
            return INCOMPLETE
        return DELETED_VISIBLE if segment not in {one for one, _ in world.shards} else GAP
    chunks = [chunk for _, chunk, _ in world.truth]
    return STALE_VISIBLE if len(set(chunks)) != len(chunks) else None


# --- operations


def step(label: str, operation: Callable[[World], tuple[World, Any]]) -> Any:
    """``operation`` with a name for histories."""

    def labelled(world: World) -> tuple[World, Any]:
        return operation(world)

    labelled.label = label  # type: ignore[attr-defined]
    return labelled


READ_LINEAGE = step("read the lineage", lambda world: (world, Lineage(world.written, world.entries, world.cleaning)))
READ_ROOT = step("read the root", lambda world: (world, (world.removed_at, world.root)))


def read_guard(name: str) -> Any:
    return step(f"read the guard of {name}", lambda world: (world, guard_of(world, name)))


def list_chunk(chunk: int) -> Any:
    return step(
        f"list chunk {chunk}",
        lambda world: (world, frozenset(shard for shard in world.shards if shard[0][1] == chunk)),
    )


def get_shards(listed: frozenset[Any], chunk: int) -> Any:
    return step(f"read the shards of chunk {chunk}", lambda world: (world, listed & world.shards))


def commit(
    label: str,
    apply: Callable[[World], World],
    *,
    lineage: Lineage | None = None,
    guard: Guard | None = None,
    root: int | None = None,
    shards: frozenset[Any] = frozenset(),
) -> Any:
    """A transaction that checks the versions of what is given. Its result says whether it was applied."""

    def operation(world: World) -> tuple[World, bool]:
        if lineage is not None and lineage.zxid != world.written:
            return world, False
        if guard is not None and getattr(guard_of(world, guard.name), "version", None) != guard.version:
            return world, False
        if (root is not None and root != world.root) or not shards <= world.shards:
            return world, False
        return apply(world), True

    return step(label, operation)


def with_lineage(world: World, entries: tuple[Entry, ...], truth: Segments | None = None) -> World:
    """The world after a write of the lineage."""
    zxid = world.zxid + 1
    now = world.truth if truth is None else truth
    return world._replace(
        zxid=zxid, written=zxid, entries=tuple(sorted(entries)), truth=now, past=(*world.past, (zxid, now))
    )


def with_entry(world: World, entry: Entry, truth: Segments | None = None) -> World:
    others = tuple(one for one in world.entries if one.name != entry.name)
    return with_lineage(world, (*others, entry), truth)


def with_guard(world: World, guard: Guard) -> World:
    others = tuple(one for one in world.guards if one.name != guard.name)
    return world._replace(guards=tuple(sorted((*others, guard._replace(version=guard.version + 1)))))


def open_stage(guard: Guard | None, attempt: int, then: str) -> Actor:
    """``open_stage`` of the attempt of that number; an actor that goes on as ``then``."""
    if guard is None or guard.state not in (OPEN, SEALED) or guard.attempt != attempt - 1:
        return
    opened = guard._replace(state=OPEN, attempt=attempt, done=False)
    done = yield commit(f"open stage {attempt}", lambda world: with_guard(world, opened), guard=guard)
    yield Become(then if done else "open")


def rest_of(guard: Guard) -> Segment:
    """What the newest attempt of the other stager brings."""
    return (guard.name, CHUNKS[0], REST + guard.rest)


def without(world: World, name: str) -> World:
    """An entry, its marks and its guard are dropped."""
    dropped = with_lineage(world, tuple(entry for entry in world.entries if entry.name != name))
    guards = tuple(guard for guard in dropped.guards if guard.name != name)
    return dropped._replace(guards=guards, cleaning=dropped.cleaning - {name})


def aborted(world: World, entry: Entry, guard: Guard) -> World:
    """An entry and its guard are reverted, in whatever transaction."""
    truth = world.truth - entry.brought | entry.replaced if entry.state == COMPLETED else world.truth
    world = with_entry(world, entry._replace(state=REVERTED), truth)
    world = with_guard(world, guard._replace(state=REVERTED, completed=entry.state == COMPLETED))
    return world._replace(aborted=world.aborted | {entry.name})


def removed(world: World, shards: frozenset[Any]) -> World:
    """Segments leave the registry, and a message with the zxid of this transaction names their objects."""
    zxid = world.zxid + 1
    messages = {(segment, zxid) for segment, _ in shards}
    return world._replace(zxid=zxid, shards=world.shards - shards, messages=world.messages | messages)


# --- actors


class Actors:
    """The actors, with the guards that are on."""

    def __init__(self, guards: frozenset[str] = ALL_GUARDS) -> None:
        self.on = guards

    def starter(self, name: str, *, force: bool = False, opens: bool = False) -> Callable[..., Actor]:
        """Replaces all it sees. Takes what is visible for known: that readers see it right is what readers check.
        ``opens`` gives out the first attempt in the same transaction."""

        def run() -> Actor:
            lineage = yield READ_LINEAGE
            if entry_of(lineage.entries, name):
                return
            overlapping = [entry for entry in lineage.entries if entry.state == IN_PROGRESS]
            if overlapping and not force:
                return
            guards = []
            for entry in overlapping:
                guards.append((yield read_guard(entry.name)))

            def start(world: World) -> World:
                for entry, guard in zip(overlapping, guards, strict=True):
                    world = aborted(world, entry, guard) if guard.attempt else without(world, entry.name)
                world = with_entry(world, Entry(name, IN_PROGRESS, replaced=world.truth))
                return with_guard(world, Guard(name, OPEN, world.zxid, attempt=int(opens)))

            checked = guards[0] if guards else None
            if not (yield commit(f"start {name}", start, lineage=lineage, guard=checked)):
                yield Become()

        return run

    def stager(self, name: str, attempt: int, *, chunks: tuple[int, ...] = CHUNKS) -> Callable[..., Actor]:
        """``open_stage`` and ``stage``, as the attempt of that number (a higher one fences it)."""

        def run(phase: str = "open", begun: bool = False) -> Actor:
            guard = yield read_guard(name)
            if phase == "open":
                return (yield from open_stage(guard, attempt, "write"))
            if guard is None or guard.state != OPEN or guard.attempt != attempt:
                return
            if phase == "finish":
                finished = guard._replace(done=True)
                if not (yield commit("finish the stage", lambda world: with_guard(world, finished), guard=guard)):
                    yield Become("finish")
                return
            for chunk in chunks:
                shard = ((name, chunk, attempt), guard.born)
                fence = guard if STAGE in self.on else None
                if not (
                    yield commit(f"stage {name}{chunk}", lambda world, shard=shard: staged(world, shard), guard=fence)
                ):
                    yield Become("write")
            yield Become("finish")

        return run

    def ender(self, name: str, *, only: tuple[int, ...] | None = None) -> Callable[..., Actor]:
        """``end``; with ``only``, it names the segments of those chunks, and does not ask whether the stage is done."""

        def run() -> Actor:
            lineage = yield READ_LINEAGE
            entry = entry_of(lineage.entries, name)
            if entry is None or entry.state != IN_PROGRESS:
                return
            guard = yield read_guard(name)
            if guard is None or guard.state not in (OPEN, SEALED):
                yield Become()
            sealed = None
            if SEAL in self.on:
                if not (
                    yield commit("seal", lambda world: with_guard(world, guard._replace(state=SEALED)), guard=guard)
                ):
                    yield Become()
                sealed = guard._replace(state=SEALED, version=guard.version + 1)
            found: frozenset[Any] = frozenset()
            for chunk in CHUNKS:
                found |= yield list_chunk(chunk)
            mine = frozenset(shard for shard in found if shard[0][0] == name)
            current = frozenset(shard for shard in mine if shard[0][2] == guard.attempt)
            chosen = frozenset(shard for shard in current if only is None or shard[0][1] in only)
            if (only is None and not guard.done) or len(chosen) < len(CHUNKS if only is None else only):
                return
            rest = mine - chosen
            if rest and not (
                yield commit("drop the rest", lambda world: removed(world, rest), guard=sealed, shards=rest)
            ):
                yield Become()
            lineage = yield READ_LINEAGE
            entry = entry_of(lineage.entries, name)
            if entry is None or entry.state != IN_PROGRESS:
                return
            brought = frozenset(segment for segment, _ in chosen)

            def switch(world: World) -> World:
                now = guard_of(world, name)
                assert entry is not None and now is not None
                truth = world.truth - entry.replaced | brought
                world = with_entry(world, entry._replace(state=COMPLETED, brought=brought), truth)
                return with_guard(world, now._replace(state=COMPLETED))

            if not (yield commit(f"end {name}", switch, lineage=lineage, guard=sealed)):
                yield Become()

        return run

    def rester(self, name: str, attempt: int) -> Callable[..., Actor]:
        """``open_stage`` and ``stage`` of another stager, whose is the first chunk."""

        def run(phase: str = "open") -> Actor:
            guard = yield read_guard(name)
            if guard is None or guard.state != OPEN or guard.rest != (attempt - 1 if phase == "open" else attempt):
                return
            if phase == "open":
                opened = guard._replace(rest=attempt, rest_done=False)
                done = yield commit(f"open rest {attempt}", lambda world: with_guard(world, opened), guard=guard)
                yield Become("write" if done else "open")
            if phase == "write":
                fence = guard if STAGE in self.on else None
                shard = (rest_of(guard), guard.born)
                done = yield commit(f"stage rest {attempt}", lambda world: staged(world, shard), guard=fence)
                yield Become("finish" if done else "write")
            finished = guard._replace(rest_done=True)
            if not (yield commit(f"finish rest {attempt}", lambda world: with_guard(world, finished), guard=guard)):
                yield Become("finish")

        return run

    def publisher(self, name: str, attempt: int, *, rest: bool = False) -> Callable[..., Actor]:
        """``publish``, as the attempt of that number: the first has opened its stage with the start. With ``rest``,
        another stager brings the first chunk. Staging and ending, which is what it does where it may not take one
        transaction, are left to the other actors."""
        chunks = CHUNKS[1:] if rest else CHUNKS

        def run(phase: str = "publish") -> Actor:
            guard = yield read_guard(name)
            if phase == "open":
                return (yield from open_stage(guard, attempt, "publish"))
            if guard is None or guard.state not in (OPEN, SEALED) or guard.attempt != attempt:
                return
            if rest and OTHERS in self.on and not guard.rest_done:
                return
            others = frozenset({rest_of(guard)}) if rest and guard.rest_done else frozenset()
            if (attempt > 1 or rest) and ALONE in self.on:
                found: frozenset[Any] = frozenset()
                for chunk in CHUNKS:
                    found |= yield list_chunk(chunk)
                if {segment for segment, _ in found if segment[0] == name} != others:
                    return
            lineage = yield READ_LINEAGE
            entry = entry_of(lineage.entries, name)
            if entry is None or entry.state != IN_PROGRESS:
                return
            mine = frozenset((name, chunk, attempt) for chunk in chunks)
            meant = mine | ({rest_of(guard)} if rest else frozenset())

            def switch(world: World) -> World:
                now = guard_of(world, name)
                assert entry is not None and now is not None
                for segment in mine:
                    world = staged(world, (segment, guard.born))
                truth = world.truth - entry.replaced | meant
                world = with_entry(world, entry._replace(state=COMPLETED, brought=mine | others), truth)
                return with_guard(world, now._replace(state=COMPLETED, done=True))

            checked = guard if PUBLISH in self.on else None
            if not (yield commit(f"publish {name}", switch, lineage=lineage, guard=checked)):
                yield Become()

        def begin(phase: str = "publish" if attempt == 1 else "open") -> Actor:
            return run(phase)

        return begin

    def reverter(self, name: str) -> Callable[..., Actor]:
        """``revert`` with force."""

        def run() -> Actor:
            lineage = yield READ_LINEAGE
            entry = entry_of(lineage.entries, name)
            if entry is None or entry.state == REVERTED or name in lineage.cleaning:
                return
            names = {segment[:2] for segment in entry.brought}
            live = [one for one in lineage.entries if one.state != REVERTED]
            if any(names & {segment[:2] for segment in one.replaced} for one in live):
                return
            guard = yield read_guard(name)
            if guard is None:
                yield Become()
            root = None
            if entry.state == COMPLETED:
                found: frozenset[Any] = frozenset()
                for chunk in CHUNKS:
                    found |= yield list_chunk(chunk)
                root = (yield READ_ROOT)[1]
                registered = frozenset(segment for segment, _ in found)
                needed = entry.replaced | (entry.brought if TO_GONE in self.on else frozenset())
                if not needed <= registered:
                    return
            apply = commit(
                f"revert {name}", lambda world: aborted(world, entry, guard), lineage=lineage, guard=guard, root=root
            )
            if not (yield apply):
                yield Become()

        return run

    def cleaner(self, name: str) -> Callable[..., Actor]:
        """The clean-up of one entry, as many cycles as it takes."""

        def run() -> Actor:
            lineage = yield READ_LINEAGE
            entry = entry_of(lineage.entries, name)
            if entry is None:
                return
            guard = yield read_guard(name)
            if entry.state == IN_PROGRESS or guard is None:
                return  # aborting a push for its age is what the reverter does
            if entry.state == COMPLETED and name not in lineage.cleaning and MARK in self.on:
                marked = commit("mark as being cleaned", lambda world: cleaned(world, name), lineage=lineage)
                yield marked
                yield Become()
            was_visible = entry.state == COMPLETED or guard.completed
            _, root = yield READ_ROOT
            if was_visible and REMOVAL in self.on:
                bump = commit("remember the removal", lambda world: remembered(world, lineage.zxid), root=root)
                if not (yield bump):
                    yield Become()
            gone = {segment[:2] for segment in entry.replaced}
            left = False
            for chunk in CHUNKS:
                found = yield list_chunk(chunk)
                settled = {one.name for one in lineage.entries if one.state != COMPLETED}
                doomed = frozenset(
                    shard
                    for shard in found
                    if (
                        shard[0][0] == name
                        if entry.state == REVERTED
                        else shard[0][:2] in gone and shard[0][0] not in settled
                    )
                )
                if doomed:
                    left = True
                    yield commit(f"remove from chunk {chunk}", lambda world, d=doomed: removed(world, d), shards=doomed)
            if left:
                yield Become()
            _, root = yield READ_ROOT
            drop = commit(f"drop {name}", lambda world: without(world, name), lineage=lineage, guard=guard, root=root)
            if not (yield drop):
                yield Become()

        return run

    def reader(self, *, leased: bool = False) -> Callable[..., Actor]:
        """Takes one snapshot; with a lease, also opens its objects."""
        lease = step("take a lease", lambda world: (_leased(world, "r"), None))

        def run() -> Actor:
            if leased and LEASE_FIRST in self.on:
                yield lease
            found: frozenset[Any] = frozenset()
            if ORDER not in self.on:
                found = yield from _read_chunks()
            read = yield READ_LINEAGE
            if ORDER in self.on:
                found = yield from _read_chunks()
            removed_at, _ = yield READ_ROOT
            if removed_at > read.zxid:
                yield Become()
            if leased and LEASE_FIRST not in self.on:
                yield lease
            born = frozenset(segment for segment, at in found if at <= read.zxid or BORN not in self.on)
            seen = shows(read.entries, born)
            yield step("compare", lambda world: (compared(world, read.zxid, seen), None))
            if leased:
                yield step("open the objects", lambda world: (_opened(world, seen), None))

        return run

    def late_reader(self) -> Callable[..., Actor]:
        """``with table.snapshot() as taken``: the lease comes after the snapshot. When the root has changed by then,
        the snapshot is taken again, under the lease."""

        def run(leased: bool = False) -> Actor:
            read = yield READ_LINEAGE
            found = yield from _read_chunks()
            removed_at, version = yield READ_ROOT
            if removed_at > read.zxid:
                yield Become(leased)
            seen = shows(read.entries, frozenset(segment for segment, at in found if at <= read.zxid))
            yield step("compare", lambda world: (compared(world, read.zxid, seen), None))
            if not leased:
                yield step("take a lease", lambda world: (_leased(world, "r"), None))
                if ROOT_AGAIN in self.on:
                    _, now = yield READ_ROOT
                    if now != version:
                        yield Become(True)
            yield step("open the objects", lambda world: (_opened(world, seen), None))

        return run

    def deleter(self) -> Callable[..., Actor]:
        """Takes the oldest message, waits for older leases, deletes."""

        def run() -> Actor:
            messages = yield step("read the messages", lambda world: (world, world.messages))
            if not messages:
                yield step("wait", lambda world: (world, None))
                yield Become()
            message = min(messages, key=lambda one: (one[1], one[0]))
            if LEASE in self.on:
                leases = yield step("read the leases", lambda world: (world, world.leases))
                if any(z < message[1] for _, z in leases):
                    yield Become()
            yield step("delete an object", lambda world: (_deleted(world, message), None))
            yield Become()

        return run


def _read_chunks() -> Generator[Any, Any, frozenset[Any]]:
    listed = []
    for chunk in CHUNKS:
        listed.append((yield list_chunk(chunk)))
    found: frozenset[Any] = frozenset()
    for chunk, shards in zip(CHUNKS, listed, strict=True):
        if shards:
            found |= yield get_shards(shards, chunk)
    return found


def staged(world: World, shard: tuple[Segment, int]) -> World:
    return world._replace(shards=world.shards | {shard}, objects=world.objects | {shard[0]})


def cleaned(world: World, name: str) -> World:
    return with_lineage(world, world.entries)._replace(cleaning=world.cleaning | {name})


def remembered(world: World, zxid: int) -> World:
    if zxid <= world.removed_at:
        return world
    return world._replace(removed_at=zxid, root=world.root + 1)


def compared(world: World, zxid: int, seen: Segments) -> World:
    """A snapshot must be the table as it was at the snapshot's zxid."""
    expected = dict(world.past)[zxid]
    if seen == expected:
        return world
    if not seen:
        return world._replace(bad=EMPTY)
    return world._replace(bad=MIX if seen - expected else GAP)


def _leased(world: World, reader: str) -> World:
    return world._replace(zxid=world.zxid + 1, leases=world.leases | {(reader, world.zxid + 1)})


def _opened(world: World, seen: Segments) -> World:
    return world._replace(leases=frozenset(), bad=None if seen <= world.objects else OBJECT_GONE)


def _deleted(world: World, message: tuple[Segment, int]) -> World:
    return world._replace(messages=world.messages - {message}, objects=world.objects - {message[0]})


def started(world: World, name: str, *, attempt: int = 0) -> World:
    """A push that is in progress when the exploration begins, its stage opened that many times."""
    world = with_entry(world, Entry(name, IN_PROGRESS, replaced=world.truth))
    return with_guard(world, Guard(name, OPEN, world.zxid, attempt=attempt))


def ended(world: World, name: str) -> World:
    """A push that was started, staged and ended before."""
    world = started(world, name, attempt=1)
    guard, entry = guard_of(world, name), entry_of(world.entries, name)
    assert guard is not None and entry is not None
    brought = frozenset((name, chunk, 1) for chunk in CHUNKS)
    for segment in brought:
        world = staged(world, (segment, guard.born))
    world = with_entry(world, entry._replace(state=COMPLETED, brought=brought), brought)
    return with_guard(world, guard._replace(state=COMPLETED, done=True))
