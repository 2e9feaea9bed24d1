"""``segments locks``, as the engineer who is called at night would type it."""

from __future__ import annotations

import pytest

from airflow_provider_segments.core.locking import Lock, LockBox, LockGranularity, LockRequest, LockType, granted_lock
from airflow_provider_segments.core.model.interval import format_ms, parse_chunk
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import LockRevokedError
from tests.cli.conftest import DAILY, CommandLine

DAY = parse_chunk("2013-01-31")
GROUP = "segments_compaction/scheduled__2026-11-21T10:00:00+00:00"


@pytest.fixture
def box(segments: CommandLine, store: SegmentStore) -> LockBox:
    """The lock box of table ``t``, as the tasks see it."""
    segments.make_table(**DAILY)
    return store.table("t").locks


def lock(box: LockBox, task: str = "compact", *partitions: int, **other: object) -> Lock:
    options = {"group": GROUP, "task": task, "interval": DAY, "priority": 25, **other}
    if partitions:
        options |= {"granularity": LockGranularity.SEGMENT, "partitions": frozenset(partitions)}
    return granted_lock("t", box.acquire(LockRequest(**options)))  # type: ignore[arg-type]


def test_a_list_says_who_holds_what_since_when_and_for_how_long(segments: CommandLine, box: LockBox) -> None:
    """Names of owners are never cut: a release needs them."""
    held = lock(box, "compact", 0, 1, 2, 7)
    lock(box, "backfill", lock_type=LockType.APPEND, interval=parse_chunk("2013-02"), group="b", priority=50)
    head, first, second = segments.ok("locks", "list", "t").out.splitlines()
    assert head.split() == ["LOCK", "TYPE", "ON", "INTERVAL", "PRIORITY", "AGE", "LEASE", "VERSION", "HELD", "BY"]
    assert first.startswith(f"{held.lock_id[:8]}  EXCLUSIVE  segments 0-2, 7  2013-01-31/2013-02-01  25")
    assert first.endswith(f"  {format_ms(held.version)}  compact of {GROUP}")
    assert "4m left" in first
    assert second.split()[1:4] == ["APPEND", "time", "chunk"]
    one, two = segments.json("locks", "list", "t")
    assert one["lock_id"] == held.lock_id
    assert (one["partitions"], one["granularity"], one["priority"]) == ([[0, 2], [7, 7]], "SEGMENT", 25)
    assert 0 < one["lease_left_ms"] <= 300_000
    assert (one["active"], one["revoked"], two["interval"]) == (True, None, str(parse_chunk("2013-02")))


def test_a_revoked_lock_names_who_did_it_and_fences_its_owner(segments: CommandLine, box: LockBox) -> None:
    """The list shows it until its owner releases it; revoking it again changes nothing."""
    held = lock(box)
    said = segments.ok("locks", "revoke", "t", held.lock_id[:8]).out
    assert said.startswith(f"lock {held.lock_id} of table t was revoked\n")
    assert f"EXCLUSIVE {DAY} of {GROUP} (priority 25) lock, held by compact; revoked by " in said
    with pytest.raises(LockRevokedError, match=r"revoked by .+ on .+ \(asked\)"):
        box.fence([held.lock_id], group=GROUP, task="compact")
    [shown] = segments.json("locks", "list", "t")
    assert (shown["active"], shown["revoked"]["reason"]) == (False, "asked")
    assert "revoked by" in segments.ok("locks", "list", "t").out
    again = segments.json("locks", "revoke", "t", held.lock_id)
    assert (again["already"], again["revoked_by"]) == (True, shown["revoked"]["by"])
    assert segments.json("locks", "release", "t", "--group", GROUP)["released"] == 1
    assert segments.json("locks", "list", "t") == []


def test_a_lock_is_named_by_a_beginning_that_fits_one(segments: CommandLine, box: LockBox) -> None:
    """Anything else is refused and changes nothing."""
    held = lock(box)
    short, unknown = segments("locks", "revoke", "t", held.lock_id[:3]), segments("locks", "revoke", "t", "nothing")
    assert (short.code, unknown.code) == (2, 1)
    assert unknown.err == (
        "error: table 't': no lock is called 'nothing' [no-such-lock] It was released, or dropped a day after its "
        "lease; locks list shows those there are.\n"
    )
    assert box.locks() == (held,)


def test_a_group_or_one_task_of_it_is_released(segments: CommandLine, box: LockBox) -> None:
    """A second time there is nothing left to do; whoever mistypes the group sees who holds locks."""
    lock(box, "one")
    lock(box, "two", interval=parse_chunk("2013-02-01"))
    mistyped = segments("locks", "release", "t", "--group", "x")
    assert (mistyped.code, mistyped.out) == (0, "")
    assert mistyped.err == f"table 't': group 'x' holds no lock; held by: {GROUP}\n"
    assert segments("locks", "release", "t", "--group", "").code == 2
    said = segments.ok("locks", "release", "t", "--group", GROUP, "--task", "one").out
    assert said == f"table t: task 'one' of group '{GROUP}' left 1 lock\n"
    assert [one.tasks for one in box.locks()] == [("two",)]
    assert segments.json("locks", "release", "t", "--group", GROUP)["released"] == 1
    assert segments.json("locks", "release", "t", "--group", GROUP)["released"] == 0
    assert "holds no lock; held by: nobody" in segments("locks", "release", "t", "--group", GROUP).err
    with pytest.raises(SystemExit):
        segments("locks", "release", "t")


def test_no_lock_is_a_remark_and_a_missing_table_an_error(segments: CommandLine, box: LockBox) -> None:
    """A mistyped table must not look like one without locks."""
    none = segments("locks", "list", "t")
    assert (none.code, none.out) == (0, "")
    assert none.err == "nobody holds a lock of table 't'\n"
    for command in (["list", "x"], ["revoke", "x", "abcd"], ["release", "x", "--group", GROUP]):
        assert segments("locks", *command).code == 1
