"""The rules of start, revert and unrevert: pure functions from a lineage to the next one, or a refusal.

Source: Apache Pinot's DefaultLineageManager and PinotHelixResourceManager (start S1 to S9, revert V1 to V5; the table
in docs/lineage.md gives each rule its name), made stricter where Pinot's own rules lose data (that page says where).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.model.names import describe_names
from airflow_provider_segments.core.upsert.record import is_published
from airflow_provider_segments.exceptions import RevertRefusedError, StartRefusedError, UnrevertRefusedError
from airflow_provider_segments.text import count


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What a push wants: ``segments_to`` may be empty, then the push stages its segments later.

    ``visible`` are the names readers see under the lineage that is being decided on.
    """

    table: str
    entry_id: str
    segments_from: tuple[str, ...]
    segments_to: tuple[str, ...]
    visible: Collection[str]
    is_refresh: bool
    force_cleanup: bool
    now_ms: int


@dataclass(frozen=True, slots=True)
class StartDecision:
    """The lineage after start; the entries it reverts (with ``to`` shortened); the ones whose ``from`` goes first."""

    lineage: Lineage
    reverted: tuple[LineageEntry, ...]
    cleaning: tuple[LineageEntry, ...]


def decide_start(lineage: Lineage, request: StartRequest) -> StartDecision:
    """What start does. Raises :class:`StartRefusedError` with the rule that refuses."""
    _check_visible(request)
    overlapping = [entry for entry in lineage if request.force_cleanup and _gives_way(entry, request)]
    spared = {entry.entry_id for entry in overlapping}
    for entry in lineage:
        if entry.entry_id not in spared:
            _check_entry(entry, request)
    ours = set(request.segments_to)
    reverted = tuple(_shortened(entry, ours, request.now_ms) for entry in overlapping)
    cleaning = tuple(_replaced_before(lineage, request))
    changed = lineage
    for entry in reverted:
        changed = changed.put(entry).with_cleaning(entry.entry_id, request.now_ms)
    for entry in cleaning:
        changed = changed.with_cleaning(entry.entry_id, request.now_ms)
    mine = LineageEntry.of(
        request.entry_id, request.segments_from, request.segments_to, EntryState.IN_PROGRESS, request.now_ms
    )
    return StartDecision(changed.put(mine), reverted, cleaning)


def check_to_names(lineage: Lineage, entry_id: str, names: Iterable[str]) -> tuple[str, str] | None:
    """Why ``names`` must not become the ``to`` of an entry, as (rule, detail), or ``None`` when they may.

    The same for every entry but the one itself: used by start for announced names, and by stage and end for names that
    were staged later.
    """
    wanted = set(names)
    for entry in lineage:
        if entry.entry_id == entry_id:
            continue
        if found := _in_both(entry.segments_to, wanted):
            rule = "to-conflict" if entry.is_live else "to-reverted"
            return rule, f"{describe_names(found)} is already in 'to' of the {entry.state.value} entry {entry.entry_id}"
        if entry.is_live and (found := _in_both(entry.segments_from, wanted)):
            return (
                "to-was-replaced",
                f"{describe_names(found)} is in 'from' of the {entry.state.value} entry {entry.entry_id}",
            )
    return None


class Force(enum.Enum):
    """What becomes of a push in progress that is to be reverted: NEVER refuses it, ALSO reverts it like a completed
    one, ONLY reverts nothing else."""

    NEVER = "never"
    ALSO = "also"
    ONLY = "only"


def check_revert(lineage: Lineage, entry_id: str, *, force: Force) -> LineageEntry:
    """The entry, when it may be reverted. Raises :class:`EntryNotFoundError` and :class:`RevertRefusedError`."""
    entry = lineage.find(entry_id)
    if entry.state is EntryState.REVERTED:
        raise _revert(entry, lineage, "already-reverted", "the entry is REVERTED already")
    if entry.state is EntryState.IN_PROGRESS:
        if force is Force.NEVER:
            hint = "To abort the push, revert it with --force (force=True)."
            raise _revert(entry, lineage, "in-progress", "the entry is IN_PROGRESS", hint)
        return entry
    if force is Force.ONLY:
        hint = "To roll it back all the same, revert it without that limit."
        raise _revert(
            entry, lineage, "completed", "the entry is COMPLETED, and only a push in progress was meant", hint
        )
    if is_published(lineage, entry_id):
        hint = "Roll the table back to an earlier version instead."
        raise _revert(entry, lineage, "upsert-published", "its rows are a part of a version of an upsert table", hint)
    if lineage.is_cleaning(entry_id):
        raise _revert(
            entry,
            lineage,
            "replaced-are-deleted",
            "the segments it replaced are being deleted",
            "Push the old data again.",
        )
    if entry.joined_to:
        _check_not_built_upon(lineage, entry)
    return entry


def check_unrevert(lineage: Lineage, entry_id: str) -> LineageEntry:
    """The REVERTED entry, when the lineage allows it to be COMPLETED again. Raises :class:`EntryNotFoundError` and
    :class:`UnrevertRefusedError`."""
    entry = lineage.find(entry_id)
    if entry.state is not EntryState.REVERTED:
        raise _unrevert(entry, lineage, "not-reverted", f"the entry is {entry.state.value}", "There is nothing to do.")
    if lineage.upsert is not None:
        raise _unrevert(
            entry,
            lineage,
            "upsert-table",
            "the rows of an upsert table are compared with others when they are published, and others were since",
            "Push the data again.",
        )
    if not entry.joined_from and not entry.joined_to and all(one.entry_id != entry_id for one in lineage.overwrites):
        detail = "it had dropped the table, or brought and replaced nothing"
        raise _unrevert(entry, lineage, "nothing-to-bring-back", detail, "To drop the table again: drop-table.")
    if lineage.is_cleaning(entry_id):
        raise _unrevert(
            entry,
            lineage,
            "brought-are-deleted",
            "it was aborted, or the time of what was rolled back is over, and its segments are being deleted",
            "Push the data again.",
        )
    wanted = set(entry.segments_from)
    for other in lineage.live() if wanted else ():
        if found := _in_both(other.segments_from, wanted):
            raise _unrevert(
                entry,
                lineage,
                "built-since",
                f"the {other.state.value} entry {other.entry_id} replaces {describe_names(found)}, "
                "which this one would replace",
                f"Revert entry {other.entry_id} first, or push the data again.",
            )
    return entry


def _check_visible(request: StartRequest) -> None:
    visible = request.visible if isinstance(request.visible, set | frozenset) else set(request.visible)
    if absent := [name for name in request.segments_from if name not in visible]:
        raise _start(request, "from-not-visible", f"{describe_names(absent)} of 'from' is not visible in the table")
    if both := _in_both(request.segments_from, set(request.segments_to)):
        raise _start(request, "from-and-to-overlap", f"{describe_names(both)} is in both 'from' and 'to'")
    if present := _in_both(request.segments_to, visible):
        raise _start(
            request,
            "to-visible",
            f"{describe_names(present)} of 'to' is already visible in the table",
            "Use new names.",
        )
    if request.is_refresh and not request.segments_from and visible:
        raise _start(
            request,
            "refresh-must-replace",
            f"'from' is empty but the REFRESH table shows {count(len(visible), 'segment')}",
            "Leave 'from' out to replace everything visible.",
        )


def _check_entry(entry: LineageEntry, request: StartRequest) -> None:
    if entry.is_live and (found := _in_both(entry.segments_from, set(request.segments_from))):
        raise _start(
            request,
            "from-replaced",
            f"{describe_names(found)} is being replaced by the {entry.state.value} entry {entry.entry_id}",
            "Wait for that push to end, revert it, or start with --force (force_cleanup=True).",
        )
    conflict = check_to_names(Lineage(request.table, {entry.entry_id: entry}), request.entry_id, request.segments_to)
    if conflict:
        raise _start(request, conflict[0], conflict[1], "Use new names.")
    if request.is_refresh and _both_initial(entry, request):
        raise _start(
            request,
            "initial-conflict",
            f"the entry {entry.entry_id} already is the first push of this REFRESH table",
            "Wait for it to end, revert it, or start with --force (force_cleanup=True).",
        )


def _both_initial(entry: LineageEntry, request: StartRequest) -> bool:
    return entry.state is EntryState.IN_PROGRESS and not entry.joined_from and not request.segments_from


def _gives_way(entry: LineageEntry, request: StartRequest) -> bool:
    """Whether a forced start reverts (or, if it is reverted already, shortens) ``entry``: Pinot S7."""
    if entry.state is EntryState.COMPLETED:
        return False
    if _in_both(entry.segments_to, set(request.segments_to)):
        return True
    if entry.state is EntryState.REVERTED:
        return False
    initial = request.is_refresh and _both_initial(entry, request)
    return initial or bool(_in_both(entry.segments_from, set(request.segments_from)))


def _shortened(entry: LineageEntry, ours: set[str], now_ms: int) -> LineageEntry:
    """Names the new push takes over leave the old one, so that hiding and deleting it never touches them."""
    left = [name for name in entry.segments_to if name not in ours]
    if entry.state is EntryState.REVERTED:
        return entry.moved_to(EntryState.REVERTED, entry.timestamp_ms, left)
    return entry.moved_to(EntryState.REVERTED, now_ms, left)


def _replaced_before(lineage: Lineage, request: StartRequest) -> Iterator[LineageEntry]:
    """Pinot S8: the third snapshot of a REFRESH table lets the first one go, so storage stays within twice the data."""
    if not (request.force_cleanup and request.is_refresh and request.segments_from):
        return
    ours = sorted(request.segments_from)
    for entry in lineage.in_state(EntryState.COMPLETED):
        if entry.joined_from and not lineage.is_cleaning(entry.entry_id) and sorted(entry.segments_to) == ours:
            yield entry


def _check_not_built_upon(lineage: Lineage, entry: LineageEntry) -> None:
    ours = set(entry.segments_to)
    for other in lineage.live():
        if other.entry_id != entry.entry_id and (found := _in_both(other.segments_from, ours)):
            raise _revert(
                entry,
                lineage,
                "built-upon",
                f"the {other.state.value} entry {other.entry_id} replaces {describe_names(found)} of its segments",
                "Revert that entry first.",
            )


def _in_both(names: Iterable[str], wanted: Collection[str]) -> list[str]:
    return [name for name in names if name in wanted] if wanted else []


def _start(request: StartRequest, rule: str, detail: str, hint: str = "") -> StartRefusedError:
    return StartRefusedError(rule, f"start refused: {detail}", table=request.table, hint=hint)


def _revert(entry: LineageEntry, lineage: Lineage, rule: str, detail: str, hint: str = "") -> RevertRefusedError:
    return RevertRefusedError(
        rule, f"revert refused: {detail}", table=lineage.table, entry_id=entry.entry_id, hint=hint
    )


def _unrevert(entry: LineageEntry, lineage: Lineage, rule: str, detail: str, hint: str = "") -> UnrevertRefusedError:
    return UnrevertRefusedError(
        rule, f"unrevert refused: {detail}", table=lineage.table, entry_id=entry.entry_id, hint=hint
    )
