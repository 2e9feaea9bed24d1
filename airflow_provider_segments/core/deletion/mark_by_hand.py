"""Marking by hand: named segments, or all that an entry has left, when nothing shows them and no live entry holds them.

The ordinary ways to here are retention and clean-up. This one is for a person, or a DAG, that knows of leftovers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_segments.core.deletion.mark import Marker
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.lineage.hiding import hidden_names, is_settled
from airflow_provider_segments.core.lineage.records import LineageRecords, StoredLineage
from airflow_provider_segments.core.model.names import check_entry_id, describe_names
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.zookeeper import Check
from airflow_provider_segments.exceptions import MarkRefusedError

_REASON = "requested"
_SWEEP_AFTER_MS = 600_000  # once what was marked is deleted; sooner, the sweep would only find it once more
_Finding = tuple[str, str, str]
"""Rule, what is wrong, and what to do next."""


@dataclass(slots=True)
class MarkReport:
    """What was marked: ``segments`` left the registry; ``sent`` counts the messages by ledger type; ``swept`` is the
    entry whose prefix will be looked under; ``gone`` are names that had left the registry before."""

    table: str
    segments: int = 0
    sent: Mapping[str, int] = field(default_factory=dict)
    swept: str = ""
    gone: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Plain data, for XCom, JSON and logs."""
        return {
            "table": self.table,
            "segments": self.segments,
            "sent": dict(self.sent),
            "swept": self.swept,
            "gone": list(self.gone),
        }


def mark_segments(marker: Marker, segments: Sequence[str], *, missing_ok: bool = False) -> MarkReport:
    """Mark the segments of these names, all or none.

    Only leftovers of REVERTED entries can be marked. With ``missing_ok`` a name that is not registered counts as done
    (for a retry); otherwise it is refused.

    Raises :class:`MarkRefusedError` with one of the rules ``visible``, ``in-lineage``, ``not-reverted`` and
    ``unknown-segment``.
    """
    names = set(segments)
    if not names:
        raise MarkRefusedError("no-segments", "mark refused: no segments were named", table=marker.table)
    report = MarkReport(marker.table)
    before = Counter(marker.sent)
    marked: set[str] = set()

    def attempt() -> None:
        stored = _records(marker).read()
        found = _having(_registry(marker).read(lambda _: True).shards, names)
        registered = {record.name for shard in found for record in shard.records} & names
        if finding := _why_needed(stored.lineage, found, names):
            raise _refused(marker, finding)
        unknown = names - registered - marked
        if unknown and not missing_ok:
            raise _refused(
                marker, ("unknown-segment", f"{describe_names(sorted(unknown))} is not registered", _UNKNOWN)
            )
        stored = _give_up(marker, stored, {entry_id for _, entry_id in _places(found, names)})
        report.gone = tuple(sorted(unknown))
        marked.update(registered)  # a conflict after some of them have gone: the next attempt finds the others
        _mark(marker, stored, found, lambda record: record.name not in names)

    marker.cluster.retried(f"mark on table {marker.table!r}", attempt)
    report.segments = len(marked)
    report.sent = _since(before, marker.sent)
    return report


def mark_entry(marker: Marker, entry_id: str) -> MarkReport:
    """Mark all that is registered of an entry that is REVERTED or gone, and ask for a look under its prefix.

    Raises :class:`MarkRefusedError` with one of the rules ``in-progress``, ``completed``, ``visible``.
    """
    check_entry_id(entry_id)
    report = MarkReport(marker.table)
    before = Counter(marker.sent)
    marked: set[str] = set()

    def attempt() -> None:
        stored = _records(marker).read()
        found = _registry(marker).of_entry(entry_id)
        if finding := _why_entry_needed(stored.lineage, entry_id, found):
            raise _refused(marker, finding, entry_id)
        stored = _give_up(marker, stored, [entry_id])
        marked.update(record.name for shard in found for record in shard.records)
        _mark(marker, stored, found, lambda _: False)
        after = marker.cluster.clock.now_ms() + _SWEEP_AFTER_MS if marked else 0
        sweep = marker.sweep_op(entry_id, reason=_REASON, not_before_ms=after)
        marker.cluster.session.commit([*_fence(marker, stored), sweep])

    marker.cluster.retried(f"mark on table {marker.table!r}", attempt)
    report.segments, report.sent, report.swept = len(marked), _since(before, marker.sent), entry_id
    return report


def _give_up(marker: Marker, stored: StoredLineage, entry_ids: Collection[str]) -> StoredLineage:
    """The lineage once it says that those of the entries that are REVERTED can no longer be brought back."""
    lineage, now_ms = stored.lineage, marker.cluster.clock.now_ms()
    for entry in lineage.in_state(EntryState.REVERTED):
        if entry.entry_id in entry_ids and not lineage.is_cleaning(entry.entry_id):
            lineage = lineage.with_cleaning(entry.entry_id, now_ms)
    if lineage is stored.lineage:
        return stored
    written = marker.cluster.session.commit([_records(marker).write(stored, lineage)])[0]
    return StoredLineage(lineage, written.version, written.mzxid)


def _mark(marker: Marker, stored: StoredLineage, found: Sequence[Shard], keep: Callable[[SegmentRecord], bool]) -> None:
    """Readers that saw a reverted entry while it was completed are told first; then the segments go."""
    if not found:
        return
    guards = _records(marker).guards({shard.name.entry_id for shard in found})
    if settled := [stored_guard.changed for stored_guard in guards.values() if stored_guard.guard.completed_at]:
        _registry(marker).remember_removal(stored.zxid, max(settled))
    marker.mark(found, keep, reason=_REASON, fence=_fence(marker, stored))


def _records(marker: Marker) -> LineageRecords:
    return LineageRecords(marker.cluster, marker.table)


def _registry(marker: Marker) -> Registry:
    return Registry(marker.cluster, marker.table)


def _fence(marker: Marker, stored: StoredLineage) -> list[Check]:
    """The lineage must still be the one that was decided on."""
    return [Check(_records(marker).path, stored.version)]


_UNKNOWN = "It was marked before, or never staged; `segments reconcile` finds objects that nothing refers to."
_HELD = "Revert that entry, or let retention remove what it replaced."


def _why_needed(lineage: Lineage, found: Sequence[Shard], names: Collection[str]) -> _Finding | None:
    """Why some of ``names`` must stay, most important reason first."""
    hidden = hidden_names(lineage)
    if shown := sorted(
        name for name, entry in _places(found, names) if is_settled(lineage, entry) and name not in hidden
    ):
        return "visible", f"{describe_names(shown)} is visible in the table", "Replace it by a push first."
    for entry in lineage.live():
        if held := sorted({*entry.segments_from, *entry.segments_to} & set(names)):
            return (
                "in-lineage",
                f"{describe_names(held)} is held by the {entry.state.value} entry {entry.entry_id}",
                _HELD,
            )
    for name, entry_id in _places(found, names):
        owner = lineage.get(entry_id)
        if owner is None or owner.state is not EntryState.REVERTED:
            state = "gone from the lineage" if owner is None else owner.state.value
            return "not-reverted", f"{name!r} was staged into entry {entry_id}, which is {state}", _HELD
    return None


def _why_entry_needed(lineage: Lineage, entry_id: str, found: Sequence[Shard]) -> _Finding | None:
    entry = lineage.get(entry_id)
    if entry is not None and entry.state is EntryState.IN_PROGRESS:
        return "in-progress", "the entry is IN_PROGRESS", "Abort it first: revert it with --force (force=True)."
    if entry is not None and entry.state is EntryState.COMPLETED:
        return "completed", "the entry is COMPLETED: its segments are visible or kept for a revert", _HELD
    if entry is None and found:
        total = sum(len(shard.records) for shard in found)
        detail = f"the entry has left the lineage, and of its segments {total} are visible or kept for a revert"
        return "visible", detail, "Replace them by a push first."
    return None


def _places(found: Sequence[Shard], names: Collection[str]) -> Iterator[tuple[str, str]]:
    return ((record.name, shard.name.entry_id) for shard in found for record in shard.records if record.name in names)


def _having(shards: Sequence[Shard], names: Collection[str]) -> list[Shard]:
    return [shard for shard in shards if any(record.name in names for record in shard.records)]


def _refused(marker: Marker, finding: _Finding, entry_id: str | None = None) -> MarkRefusedError:
    rule, detail, hint = finding
    return MarkRefusedError(rule, f"mark refused: {detail}", table=marker.table, entry_id=entry_id, hint=hint)


def _since(before: Counter[str], now: Counter[str]) -> dict[str, int]:
    return {kind: count for kind, count in (now - before).items() if count}
