"""Random histories of one table, through real calls, against the one rule for what readers see.

A row is seen if and only if the push that brought it is COMPLETED, no COMPLETED entry replaces its segment, and no
later COMPLETED overwrite holds its time. :meth:`Lab.expected` is that sentence; :meth:`Lab.seen` is a snapshot.

Appends, overwrites (with and without rows, of any width), corrections and rewrites of any granularity run beside each
other, each of them a job of several steps. People roll them back and bring them back, registry records of rewrites are
lost, the clean-up runs, time passes and leases end. Any step may be killed before or after any of its writes, get no
reply, or have another step land between two of its writes; a killed job goes on as another attempt, starts over, or
never comes back. After every step readers must see what the sentence says.
"""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlparse

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.locking import (
    Granted,
    LockGranularity,
    LockRequest,
    LockType,
    Priority,
    granted_lock,
)
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.model.segment import Segment, SegmentRecord, StagedSegment
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.replacement.start import StartedEntry
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Delete, Node, Op, ZooKeeperSession
from airflow_provider_segments.exceptions import EntryNotFoundError, OutcomeUnknownError, RefusedError, SegmentsError
from tests.support.sessions import CountingSession, Outcome
from tests.support.tables import DAY_MS, HOUR_MS, JANUARY_1, QUICK, HandClock, make_table, object_path

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
MONTH = "2013-01"
HOURS = tuple(f"{day}T09" for day in DAYS)
TIMES = tuple(JANUARY_1 + day * DAY_MS + hour * HOUR_MS for day in range(3) for hour in (3, 9, 15))
"""When rows are: three times a day."""
SPANS = (
    *(parse_chunk(chunk) for chunk in (*HOURS, *DAYS, MONTH)),
    Interval(JANUARY_1, JANUARY_1 + 2 * DAY_MS),
    Interval(JANUARY_1 + 12 * HOUR_MS, JANUARY_1 + 36 * HOUR_MS),
)
"""What overwrites hold: chunks, and time that is none."""
MOST_RUNNING = 3
MOST_TRIES = 3
OBJECT = b"rows"


class KilledError(BaseException):
    """The process is gone: nothing catches it, and nothing more is written through its session."""


class RememberingSession(ZooKeeperSession):
    """Asks the server once. All writes of a history go through one connection, so what was read holds until one of
    them writes it: four of five round trips are saved. Every write is the server's to take or to refuse. ``known`` are
    the answers, and ``sent`` grows with every write."""

    known: dict[tuple[str, str], Any]
    sent: list[int]

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return self._ask("node", paths, super().get_many)

    def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        return [list(names) for names in self._ask("children", paths, super().children_many)]

    def commit_many(self, transactions: Sequence[Sequence[Op]]) -> list[Outcome]:
        self._forget(op.path for ops in transactions for op in ops)
        return super().commit_many(transactions)

    def _create_absent(self, paths: Sequence[str]) -> None:
        self._forget(paths)
        super()._create_absent(paths)

    def _ask(self, what: str, paths: Sequence[str], read: Callable[[Sequence[str]], list[Any]]) -> list[Any]:
        unknown = [path for path in paths if (what, path) not in self.known]
        if unknown:
            self.known.update(((what, path), answer) for path, answer in zip(unknown, read(unknown), strict=True))
        return [self.known[what, path] for path in paths]

    def _forget(self, paths: Iterable[str]) -> None:
        self.sent[0] += 1
        for path in paths:
            for key in (("node", path), ("children", path), ("children", path.rpartition("/")[0])):
                self.known.pop(key, None)


class FatefulSession(CountingSession, RememberingSession):
    """The session of one process, on a connection that all of them share. At the ``at``-th write something happens."""

    at = 0
    fate = ""
    dead = False
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    @classmethod
    def on(cls, other: ZooKeeperSession) -> Self:
        """A session of its own on the connection of ``other``, and with what that has read."""
        made = cls.__new__(cls)
        made.__dict__.update({"known": {}, "sent": [0], **other.__dict__, "writes": 0})
        return made

    def _one(self, ops: Sequence[Op]) -> Outcome:
        lost = self.fate.startswith("lose") and self.writes + 1 == self.at
        if lost and self.fate == "lose before":
            self.writes += 1
            return OutcomeUnknownError("lost on purpose, before it was sent")
        outcome = super()._one(ops)
        return OutcomeUnknownError("lost on purpose, after it was answered") if lost else outcome

    def before(self) -> None:
        if self.dead:
            raise KilledError
        self._meet("before")

    def after(self) -> None:
        self._meet("after")

    def _meet(self, when: str) -> None:
        if self.writes != self.at:
            return
        if self.fate == f"die {when}":
            self.dead = True
            raise KilledError
        if self.fate == f"meanwhile {when}":
            self.fate = ""
            self.meanwhile()


@dataclass
class Row:
    """A row of a segment; ``id`` is its own, whatever segment it is in."""

    id: int
    at_ms: int


@dataclass
class Push:
    """What the sentence needs to know of an entry: the segments it brought, the time it overwrites (inside of which
    time chunks of what it brings count, too), and the rows whose segments it replaces. A rewrite brings none of its
    own."""

    rewrites: bool
    locked: Interval | None
    held: tuple[Interval, ...]
    hides: frozenset[int]
    brought: tuple[str, ...] = ()
    state: str = "IN_PROGRESS"


class Lab:
    """One table and everybody at work on it."""

    def __init__(self, store: SegmentStore, name: str, chance: random.Random) -> None:
        self.chance = chance
        self.hand = HandClock()
        self.session = FatefulSession.on(store.session)
        self.checked = -1
        self.store = store.replace(session=self.session, clock=self.hand.clock(), retry=QUICK)
        self.table = make_table(self.store, name, replacedSegmentsRetentionPeriod="2h")
        self.configure(segment_locking=True)
        self.file = Path(unquote(urlparse(store.storage.uri).path)).parent / "rows"
        self.file.write_bytes(OBJECT)
        self.numbers = itertools.count(1)
        self.rows: dict[str, tuple[Row, ...]] = {}
        self.chunks: dict[str, str] = {}
        self.pushes: dict[str, Push] = {}
        self.order: list[str] = []
        self.jobs: list[Job] = []
        self.lost: str = ""
        self.log: list[str] = []
        self.taken: Counter[str] = Counter()
        self.nested = False
        self.busy: Job | None = None

    # --- the sentence, and what readers see

    def expected(self) -> list[int]:
        """The rows that must be seen."""
        completed = [entry_id for entry_id in self.order if self.pushes[entry_id].state == "COMPLETED"]
        hidden = {row for entry_id in completed for row in self.pushes[entry_id].hides}
        found = []
        for place, entry_id in enumerate(completed):
            push = self.pushes[entry_id]
            later = [span for other in completed[place + 1 :] for span in self._held_by(self.pushes[other])]
            found += [
                row.id
                for name in (() if push.rewrites else push.brought)
                for row in self.rows[name]
                if row.id not in hidden and not any(span.start_ms <= row.at_ms < span.end_ms for span in later)
            ]
        return sorted(found)

    def _held_by(self, push: Push) -> list[Interval]:
        brought = [parse_chunk(self.chunks[name]) for name in push.brought]
        return [*push.held, *(chunk for chunk in brought if push.locked and push.locked.contains(chunk))]

    def seen(self, snapshot: Snapshot) -> list[int]:
        """The rows that are."""
        return sorted(row.id for segment in snapshot.segments for row in self.visible_rows(segment))

    def visible_rows(self, segment: Segment) -> list[Row]:
        """The rows of a segment that readers see."""
        return cut(self.rows[segment.name], segment.visible_in)

    def check(self) -> None:
        """Compare the two if anything was written since the last time; of a random day, too."""
        sent = self.session.sent[0]
        if sent == self.checked:
            return
        self.checked = sent
        self.taken["checks"] += 1
        self.follow()
        wanted = self.expected()
        snapshot = self.table.snapshot()
        assert self.seen(snapshot) == wanted, self.differs(snapshot, wanted)
        assert all(object_path(self.table, segment.key).exists() for segment in snapshot.segments)
        day = self.chance.randrange(3)
        start, end = JANUARY_1 + day * DAY_MS, JANUARY_1 + (day + 1) * DAY_MS
        of_day = [row.id for one in self.table.snapshot(start, end).segments for row in self.visible_rows(one)]
        times = {row.id: row.at_ms for rows in self.rows.values() for row in rows}
        within = [row for row in wanted if start <= times[row] < end]
        assert sorted(row for row in of_day if start <= times[row] < end) == within, "a reader of one day sees others"

    def differs(self, snapshot: Snapshot, wanted: list[int]) -> str:
        """The history, and what is wrong at its end."""
        seen = Counter(self.seen(snapshot))
        return "\n".join(
            [
                *self.log,
                f"seen twice: {[row for row, times in seen.items() if times > 1]}",
                f"seen, and must not be: {sorted(set(seen) - set(wanted))}",
                f"lost: {sorted(set(wanted) - set(seen))}",
            ]
        )

    def follow(self) -> None:
        """Note who was completed, in that order, and who was rolled back."""
        lineage = self.table.lineage()
        for entry_id, push in self.pushes.items():
            entry = lineage.get(entry_id)
            if entry is None:
                push.state = push.state if push.state == "COMPLETED" else "REVERTED"
                continue
            push.state = entry.state.value
            if entry.state is EntryState.COMPLETED and entry_id not in self.order:
                self.order.append(entry_id)
                push.brought = entry.segments_to
        if self.lost and lineage.get(self.lost) is None:
            self.lost = ""

    # --- what happens

    def step(self) -> None:
        """One random step, and a look at what readers see then."""
        choices: list[tuple[float, Callable[[], None]]] = [
            (8 if len(self.jobs) < MOST_RUNNING else 0, self.begin),
            (40 if self.jobs else 0, self.go_on),
            (3, self.roll_back),
            (2, self.bring_back),
            (1, self.abort),
            (2, self.clean_up),
            (2, self.let_time_pass),
            (1.5, self.let_a_night_pass),
            (1, self.take_a_lock_away),
            (0.15 if not self.nested else 0, self.switch_locking),
            (4 if self.table.lineage().rewrites else 0, self.lose),
        ]
        weights = [weight for weight, _ in choices]
        self.chance.choices([act for _, act in choices], weights)[0]()
        self.check()

    def fill(self) -> None:
        """A few pushes at which nothing goes wrong."""
        for _ in range(self.chance.randint(1, 3)):
            job = self.job(self.chance.choice([Append, Append, Overwrite]))
            for step in job.steps():
                self.note(f"{step.__name__} {type(job).__name__} {job.name}")
                step(self.table)
            self.check()

    def begin(self) -> None:
        """Another job."""
        full = bool(self.table.snapshot().names)
        kind = self.chance.choices([Append, Overwrite, Correction, Rewrite], [4, 4, 2 * full, 8 * full])[0]
        self.jobs.append(self.job(kind))

    def job(self, kind: type[Job]) -> Job:
        """A job of a DAG run of its own, or of one whose jobs share their locks."""
        name = f"job{next(self.numbers)}"
        return kind(self, name, self.chance.choice([name, name, "run"]))

    def go_on(self) -> None:
        """One of the jobs takes its next step. One that is in the middle of a step goes on with that."""
        idle = [job for job in self.jobs if job is not self.busy]
        if not idle:
            return
        job = self.chance.choice(idle)
        self.busy, before = job, self.busy
        try:
            job.go_on()
        finally:
            self.busy = before

    def roll_back(self) -> None:
        """Somebody reverts a push that was completed."""
        done = [entry_id for entry_id, push in self.pushes.items() if push.state == "COMPLETED"]
        if done:
            entry_id = self.chance.choice(done)
            may_empty = self.chance.random() < 0.8
            self.say(f"revert {entry_id[:4]}", lambda table: table.revert(entry_id, allow_empty=may_empty))

    def bring_back(self) -> None:
        """Somebody brings back what was rolled back."""
        gone = [entry_id for entry_id, push in self.pushes.items() if push.state == "REVERTED"]
        if gone:
            entry_id = self.chance.choice(gone)
            if self.say(f"unrevert {entry_id[:4]}", lambda table: table.unrevert(entry_id, allow_empty=True)):
                self.taken["unrevert done"] += 1

    def abort(self) -> None:
        """Somebody aborts a push in progress."""
        running = [entry_id for entry_id, push in self.pushes.items() if push.state == "IN_PROGRESS"]
        if running:
            entry_id = self.chance.choice(running)
            self.say(f"abort {entry_id[:4]}", lambda table: table.abort(entry_id))

    def clean_up(self) -> None:
        """A pass of retention."""
        self.say("clean up", lambda table: table.retain())

    def let_time_pass(self) -> None:
        """A moment, the end of a lease, or of a retention period."""
        milliseconds = self.chance.choice([1, 600_000, 3 * HOUR_MS])
        self.log.append(f"{milliseconds} ms pass")
        self.hand.advance(milliseconds)

    def let_a_night_pass(self) -> None:
        """Nobody's lock or overwrite is young any more, and a clean-up sees that."""
        self.note("night")
        self.follow()  # the clean-up may drop an entry that another process has just completed
        self.hand.advance(3 * HOUR_MS)
        self.clean_up()

    def take_a_lock_away(self) -> None:
        """Somebody revokes a lock, or releases it in its owner's place."""
        locks = self.table.locks.locks()
        if locks:
            lock = self.chance.choice(locks)
            if self.chance.random() < 0.5:
                self.say("revoke", lambda table: table.locks.revoke([lock.lock_id], by="somebody"))
            else:
                self.say("free", lambda table: table.locks.release(lock.group, lock.tasks[0], lock_ids=[lock.lock_id]))

    def switch_locking(self) -> None:
        """The table's config is changed: new segments get versions from now on, or no longer."""
        self.note("switch")
        self.configure(segment_locking=not self.table.config().segment_locking)

    def configure(self, *, segment_locking: bool) -> None:
        """Write the table's config."""
        document = self.table.config().to_json()
        document["segmentBuildConfig"] = {"segmentLocking": segment_locking, "segmentGranularity": "DAY"}
        self.store.apply_config(type(self.table.config()).from_json(document))

    def lose(self) -> None:
        """A registry record of a rewrite is gone. One at a time: of two, one may have held what the other fell back to.
        And not while the clean-up is about to mark that rewrite: a loss then is one after the mark."""
        lineage = self.table.lineage()
        rewrites = [
            entry_id
            for entry_id in lineage.rewrites
            if lineage.built_upon(lineage.entries[entry_id]) <= lineage.rewrites.keys()
        ]
        if not rewrites or self.lost or self.nested:
            return
        entry_id = self.chance.choice(sorted(rewrites))
        shards = self.table._context.registry.of_entry(entry_id)
        if shards:
            shard = self.chance.choice(shards)
            self.lost = entry_id
            self.note(f"lose a record of {entry_id[:4]}")
            self.session.commit([Delete(shard.name.path, shard.version)])

    def note(self, what: str) -> None:
        """Remember a step."""
        self.log.append(("   meanwhile " if self.nested else "") + what)
        self.taken[what.split(" ")[0]] += 1

    def say(self, what: str, act: Callable[[Table], Any], table: Table | None = None) -> bool:
        """Act as another process does, which may meet its fate unless ``table`` is given; whether it came to its end.
        Refusals are noted."""
        self.note(what)
        try:
            act(table or self.fated())
        except KilledError:
            self.log.append("   killed")
            self.taken["killed"] += 1
            return False
        except RefusedError as error:
            self.log.append(f"   {error.rule}")
            self.taken[error.rule] += 1
            return False
        except EntryNotFoundError:
            self.log.append("   no such entry")
            return False
        return True

    def fated(self) -> Table:
        """The table through a session of its own."""
        session = FatefulSession.on(self.session)
        if not self.nested and self.chance.random() < 0.3:
            session.at = self.chance.choice([1, 1, 1, 2, 2, 3, 3, 4, 5, 6])
            what = self.chance.choice(["die", "die", "lose", "meanwhile", "meanwhile"])
            session.fate = f"{what} {self.chance.choice(['before', 'after'])}"
            session.meanwhile = self.meanwhile
            self.log.append(f"   ({session.fate} write {session.at})")
        return self.store.replace(session=session).table(self.table.name)

    def meanwhile(self) -> None:
        """Another step, between two writes of one."""
        self.nested = True
        before = list(self.jobs)
        try:
            self.step()
        finally:
            self.nested = False
        self.taken["meanwhile"] += self.jobs != before

    def settle(self) -> None:
        """Everybody is gone for good; then the clean-up comes to its end, and nothing is left but what is seen."""
        self.jobs = []
        self.mend()
        for _ in range(40):
            self.hand.advance(30 * HOUR_MS)
            self.table.retain()
            self.store.deleter().drain()
            self.check()
            self.rewrite_cut()
            if not self.left():
                return
        raise AssertionError("\n".join([*self.log, "the clean-up never comes to its end:", *self.left()]))

    def rewrite_cut(self) -> None:
        """Rewrite what overwrites hide in part: they stay for as long as there is something that they hide."""
        for segment in self.table.snapshot().segments:
            if segment.visible_in:
                job = Rewrite(self, f"job{next(self.numbers)}", "settle")
                job.chunk, job.inputs, job.seen_zxid = segment.chunk, [segment], 0
                if all(self.say(f"{step.__name__} {job.name}", step, self.table) for step in job.steps()[1:]):
                    self.check()

    def mend(self) -> None:
        """Revert what readers have fallen back from, as the log says, and before it what was built upon it."""
        lineage = self.table.lineage()
        if not self.lost or not lineage.can_fall_back(self.lost):
            return
        upon = lineage.built_upon(lineage.entries[self.lost])
        running = [entry.entry_id for entry in lineage.in_state(EntryState.IN_PROGRESS)]
        for entry_id in [*running, *(one for one in reversed(self.order) if one in upon)]:
            if not self.say(f"mend {entry_id[:4]}", partial(self.mended, entry_id), self.table):
                return  # what was lost had been replaced by what stands, so nobody has fallen back
            self.check()

    @staticmethod
    def mended(entry_id: str, table: Table) -> None:
        """Revert one of them, whatever its state."""
        table.revert(entry_id, force=True, allow_empty=True)

    def left(self) -> list[str]:
        """Entries, and objects that nobody sees."""
        stored = {one.key for one in self.store.storage.list(f"{self.table.name}/")}
        return [*self.table.lineage().entries, *(stored - set(self.table.snapshot().files))]


def cut(rows: Sequence[Row], parts: Sequence[Interval]) -> list[Row]:
    """The rows in ``parts`` of time; none given means all."""
    return [row for row in rows if not parts or any(one.start_ms <= row.at_ms < one.end_ms for one in parts)]


@dataclass
class Job(ABC):
    """A push, step by step. ``locked`` is the time of its EXCLUSIVE lock."""

    lab: Lab
    name: str
    group: str
    at: int = 0
    tries: int = 0
    entry_id: str = ""
    started: StartedEntry | None = None
    locks: list[HeldLock] = field(default_factory=list)
    stagers: tuple[str, ...] = ()

    @abstractmethod
    def steps(self) -> Sequence[Callable[[Table], None]]:
        """What it does, in order."""

    def kinds(self) -> Iterable[str]:
        """What kinds of push it is, for counting them."""
        return [type(self).__name__.lower()]

    def go_on(self) -> None:
        """The next step, again if it failed before; or nothing more for ever."""
        step = self.steps()[self.at]
        if self.lab.say(f"{step.__name__} {type(self).__name__} {self.name}", step):
            self.at += 1
            self.lab.taken.update(f"{step.__name__} done: {kind}" for kind in self.kinds())
            if self.at == len(self.steps()) and self in self.lab.jobs:
                self.lab.jobs.remove(self)
            return
        self.tries += 1
        if self in self.lab.jobs and (self.tries > MOST_TRIES or self.lab.chance.random() < 0.15):
            self.lab.jobs.remove(self)  # what it leaves behind is for others
        elif self.lab.chance.random() < 0.3:
            self.at = 0

    @abstractmethod
    def start(self, table: Table) -> None:
        """Its first step."""

    def stage(self, table: Table) -> None:
        """Write what :meth:`rows` says, and register it. Two builds share the work, or one does all of it."""
        if not self.stagers:
            self.stagers = self.lab.chance.choice([("build",), ("build",), ("build", "other")])
        content = list(self.rows())
        for number, stager in enumerate(self.stagers):
            ticket = table.open_stage(self.entry_id, stager)
            table.stage(ticket, list(self.segments(table, ticket, content[number :: len(self.stagers)])))

    def end(self, table: Table) -> None:
        """The switch."""
        table.end(self.entry_id)

    def release(self, table: Table) -> None:
        """Give back what it has locked."""
        table.locks.release(self.group, self.name)

    def segments(
        self, table: Table, ticket: StageTicket, content: Sequence[tuple[str, Sequence[Row]]]
    ) -> Iterator[StagedSegment]:
        """Objects of this attempt."""
        for number, (chunk, rows) in enumerate(content):
            name = f"{table.name}_{entry_tag(self.entry_id)}_{ticket.stager}{ticket.attempt}_{number}"
            owner = owner_metadata(table.name, name, ticket.generation)
            table.storage.put_file(self.lab.file, ticket.prefix + name, owner=owner)
            self.lab.rows[name], self.lab.chunks[name] = tuple(rows), chunk
            times = [row.at_ms for row in rows] or [parse_chunk(chunk).start_ms]
            record = SegmentRecord(name, name, len(rows), len(OBJECT), 0, min(times), max(times))
            yield StagedSegment(chunk, record)

    @abstractmethod
    def rows(self) -> Sequence[tuple[str, Sequence[Row]]]:
        """Time chunks, and rows of each."""

    def new_rows(self, chunks: Sequence[str]) -> list[tuple[str, list[Row]]]:
        """A few rows at random times of each chunk."""
        made = []
        for chunk in chunks:
            interval = parse_chunk(chunk)
            times = [at for at in TIMES if interval.start_ms <= at < interval.end_ms]
            picked = self.lab.chance.sample(times, self.lab.chance.randint(1, len(times)))
            made.append((chunk, [Row(next(self.lab.numbers), at) for at in picked]))
        return made

    def begun(self, started: StartedEntry, push: Push) -> None:
        """Remember the entry."""
        self.started, self.entry_id = started, started.entry_id
        self.lab.pushes.setdefault(started.entry_id, push)

    def ask(self, table: Table, request: LockRequest) -> None:
        """Take a lock."""
        result = table.locks.acquire(request)
        if not isinstance(result, Granted):
            table.locks.release(self.group, self.name)
        lock = granted_lock(table.name, result)
        self.locks = [HeldLock(lock.lock_id, self.group, self.name)]


class Append(Job):
    """New rows beside all others; sometimes only a part of what was staged is to be seen."""

    def steps(self) -> Sequence[Callable[[Table], None]]:
        if self.group == self.name:
            return [self.start, self.stage, self.end]
        return [self.lock, self.start, self.stage, self.end, self.release]

    def lock(self, table: Table) -> None:
        """A lock of the DAG run, on more than the append needs."""
        kind = self.lab.chance.choice([LockType.APPEND, LockType.SHARED])
        interval = parse_chunk(self.lab.chance.choice((*DAYS, MONTH)))
        self.ask(table, LockRequest(group=self.group, task=self.name, interval=interval, lock_type=kind))

    def start(self, table: Table) -> None:
        started = table.start(identity=self.name, locks=self.locks)
        self.begun(started, Push(False, None, (), frozenset()))

    def rows(self) -> Sequence[tuple[str, Sequence[Row]]]:
        return self.new_rows(self.lab.chance.sample((*HOURS, *DAYS, MONTH), self.lab.chance.randint(1, 3)))

    def end(self, table: Table) -> None:
        names = table.staged(self.entry_id).names
        is_partial = len(names) > 1 and self.lab.chance.random() < 0.2
        table.end(self.entry_id, self.lab.chance.sample(names, len(names) - 1) if is_partial else None)


class Overwrite(Job):
    """Other rows, or none, in the place of all that is older in the time that it has locked."""

    span: Interval
    held: tuple[Interval, ...]
    chunks: tuple[str, ...]

    def steps(self) -> Sequence[Callable[[Table], None]]:
        return [self.lock, self.start, self.stage, self.end, self.release]

    def kinds(self) -> Iterable[str]:
        yield "overwrite with rows" if self.chunks else "overwrite without rows"
        for span in self.held:
            yield f"overwrite of {(span.end_ms - span.start_ms) // HOUR_MS} h"

    def lock(self, table: Table) -> None:
        """An EXCLUSIVE lock. What it is to hold is chosen once."""
        chance = self.lab.chance
        if not hasattr(self, "span"):
            self.span = chance.choice(SPANS)
            inside = [chunk for chunk in (*HOURS, *DAYS, MONTH) if self.span.contains(parse_chunk(chunk))]
            self.chunks = tuple(chance.sample(inside, min(len(inside), chance.randint(0, 2))))
            within = [span for span in SPANS if self.span.contains(span)]
            self.held = (chance.choice(within),) if not self.chunks or chance.random() < 0.5 else ()
        priority = chance.choice([Priority.BATCH, Priority.BATCH, Priority.REALTIME])
        if self.locks:
            table.locks.release(self.group, self.name)
        self.ask(table, LockRequest(group=self.group, task=self.name, interval=self.span, priority=priority))

    def start(self, table: Table) -> None:
        started = table.start((), identity=self.name, locks=self.locks, overwrites=self.held)
        guard = table._context.guard(started.entry_id).guard
        self.begun(started, Push(False, self.span if guard.placed else None, self.held, frozenset()))

    def rows(self) -> Sequence[tuple[str, Sequence[Row]]]:
        return self.new_rows(self.chunks)

    def end(self, table: Table) -> None:
        table.end(self.entry_id, allow_empty=True)


class Correction(Job):
    """Other rows, or none, in the place of one segment that it names."""

    def steps(self) -> Sequence[Callable[[Table], None]]:
        return [self.start, self.stage, self.end]

    def start(self, table: Table) -> None:
        segments = self.lab.table.snapshot().segments
        names = [self.lab.chance.choice(segments).name] if segments else []
        started = table.start(names, identity=self.name)
        hides = frozenset(row.id for name in started.segments_from for row in self.lab.rows[name])
        self.begun(started, Push(False, None, (), hides))

    def rows(self) -> Sequence[tuple[str, Sequence[Row]]]:
        return self.new_rows(self.lab.chance.sample((*DAYS, MONTH), self.lab.chance.choice([0, 1, 1])))

    def end(self, table: Table) -> None:
        table.end(self.entry_id, allow_empty=True)


class Rewrite(Job):
    """The same rows in other segments, planned on a snapshot that may be old when it is started."""

    chunk: str
    inputs: list[Segment]
    seen_zxid: int
    is_stale = False

    def kinds(self) -> Iterable[str]:
        yield "rewrite"
        if self.at > 1:
            stays = all(segment.chunk == self.chunk for segment in self.inputs)
            yield "rewrite of its granularity" if stays else "rewrite of another granularity"
        if self.is_stale:
            yield "rewrite of a stale snapshot"
        if any(segment.visible_in for segment in self.inputs):
            yield "rewrite of a cut segment"

    def steps(self) -> Sequence[Callable[[Table], None]]:
        return [self.look, self.lock, self.start, self.stage, self.end, self.release]

    def look(self, table: Table) -> None:
        """Choose a time chunk, and some segments of it."""
        chance = self.lab.chance
        snapshot = self.lab.table.snapshot()
        segments, self.seen_zxid = snapshot.segments, snapshot.zxid
        if not segments:
            raise NothingThereError
        one = chance.choice(segments)
        self.chunk = chance.choice([chunk for chunk in (*DAYS, MONTH) if parse_chunk(chunk).contains(one.interval)])
        found = [other for other in segments if other is not one and parse_chunk(self.chunk).contains(other.interval)]
        self.inputs = [one, *chance.sample(found, min(len(found), chance.randint(0, 2)))]

    def lock(self, table: Table) -> None:
        """A lock on the segments, on the chunk, or none: what readers see does not hang on it."""
        if self.locks:
            table.locks.release(self.group, self.name)
        self.locks = []
        kind = self.lab.chance.choice(["REPLACE", "SEGMENT", "none"])
        interval = parse_chunk(self.chunk)
        request = LockRequest(
            group=self.group,
            task=self.name,
            interval=interval,
            lock_type=LockType.REPLACE,
            priority=Priority.COMPACTION,
        )
        if kind == "SEGMENT" and all(one.chunk == self.chunk and one.partition >= 0 for one in self.inputs):
            request = LockRequest(
                group=self.group,
                task=self.name,
                interval=interval,
                granularity=LockGranularity.SEGMENT,
                partitions=frozenset(one.partition for one in self.inputs),
                priority=Priority.COMPACTION,
            )
        if kind != "none":
            self.ask(table, request)

    def start(self, table: Table) -> None:
        self.is_stale = self.lab.table.snapshot().zxid > self.seen_zxid
        names = [one.name for one in self.inputs]
        started = table.start(names, identity=self.name, locks=self.locks, rewrite=self.chunk)
        if set(started.segments_from) != set(names):
            self.lab.pushes.setdefault(started.entry_id, Push(True, None, (), frozenset()))
            table.abort(started.entry_id)
            started = table.start(names, identity=self.name, locks=self.locks, rewrite=self.chunk)
        self.begun(started, Push(True, None, (), frozenset()))

    def rows(self) -> Sequence[tuple[str, Sequence[Row]]]:
        assert self.started is not None
        cuts = self.started.cuts
        rows = [row for name in self.started.segments_from for row in cut(self.lab.rows[name], cuts.get(name, ()))]
        pieces = self.lab.chance.randint(1, 2)
        return [(self.chunk, rows[at::pieces]) for at in range(pieces)]


class NothingThereError(RefusedError):
    """There is nothing to rewrite."""

    def __init__(self) -> None:
        super().__init__("nothing-there", "nothing to rewrite", table="")


def play(store: SegmentStore, seed: int, taken: Counter[str] | None = None) -> None:
    """One random history, from its seed; in the end, of every fourth, the clean-up runs dry."""
    chance = random.Random(seed)
    lab = Lab(store, f"h{seed}", chance)
    try:
        lab.fill()
        for _ in range(chance.randint(8, 40)):
            lab.step()
        if seed % 4 == 0:
            lab.settle()
    except (AssertionError, SegmentsError, KeyError) as error:
        raise AssertionError(f"history {seed}: {error!r}\n" + "\n".join(lab.log[-60:])) from error
    if taken is not None:
        taken.update(lab.taken)
