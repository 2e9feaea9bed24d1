"""Segments that joined a version which a push under a time-chunk lock has founded.

They are seen only together with what founded it, and beneath it nothing is. So that push cannot be reverted any more
once others have joined (as it cannot once a later push has replaced its segments), and who joins checks, in the switch,
that the version is still there. Both decide under the lineage that they compare and set, so one of them sees the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from airflow_provider_segments.core.lineage.entries import LineageEntry
from airflow_provider_segments.core.lineage.guard import Guard, Rewrite
from airflow_provider_segments.core.lineage.hiding import hidden_names
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.locking import APPEND_VERSION
from airflow_provider_segments.core.locking.counters import Counters, alone, newest_version
from airflow_provider_segments.core.model.interval import ALL_TIME, Interval
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.replacement.places import Known, Looked, Version, Versions, registered
from airflow_provider_segments.core.replacement.rules import describe
from airflow_provider_segments.core.timeline import Placed, gone_back_from, overlay, places_of
from airflow_provider_segments.exceptions import EndRefusedError, RevertRefusedError


def founded_by(rewrite: Rewrite, records: Iterable[SegmentRecord]) -> Version | None:
    """The version of its time chunk that a rewrite founds with ``records``; ``None`` when those overshadow its inputs
    in theirs."""
    places = (record.place for record in records)
    return next(((rewrite.interval, place.version) for place in places if place is not None and place.founds), None)


def check_joined(
    context: Context,
    stored: StoredLineage,
    entry_id: str,
    own: Collection[Version],
    counters: Counters,
    looked: Looked,
) -> None:
    """Every version that the entry's segments, of the versions ``own``, join is there, and no other granularity beside
    it. The lock box, with its ``counters``, knows where that needs a look: in time where other ids were given out, too.

    Raises :class:`EndRefusedError` (``version-gone``, ``granularity-differs``)."""
    if all(version == APPEND_VERSION and alone(counters, interval, version) for interval, version in own):
        return
    others = _settled(context, stored, entry_id, own, looked)
    for one in own:
        check_granularity(context, entry_id, one, others)
    joined = {one for one in own if one[1] != APPEND_VERSION}
    if gone := joined - {one.version for one in others}:
        interval, version = min(gone)
        raise EndRefusedError(
            "version-gone",
            f"end refused: version {version} of {interval}, which its segments joined, was reverted meanwhile",
            table=context.table,
            entry_id=entry_id,
            hint="Run the build again.",
        )


def check_granularity(context: Context, entry_id: str, own: Version, others: Iterable[Known]) -> None:
    """None of ``others`` is of another time chunk of the version ``own`` that overlaps its. Raises
    :class:`EndRefusedError` (``granularity-differs``)."""
    interval, version = own
    for one in others:
        if one.place.version == version and one.interval != interval and one.interval.overlaps(interval):
            raise EndRefusedError(
                "granularity-differs",
                f"end refused: segments of {one.chunk}, which overlaps {interval} of the same version, "
                "were published meanwhile",
                table=context.table,
                entry_id=entry_id,
                hint="Run the build again.",
            )


def check_not_joined(context: Context, stored: StoredLineage, entry_id: str, guard: Guard) -> None:
    """Nobody has joined a version that the entry founded. Raises :class:`RevertRefusedError` (``version-joined``)."""
    if not guard.locks:
        return
    founded = {one.version for one in _of_entry(context, stored, entry_id) if one.place.founds}
    others = _settled(context, stored, entry_id, founded) if founded else []
    if joined := [one.name for one in others if one.version in founded]:
        raise RevertRefusedError(
            "version-joined",
            f"revert refused: {describe(joined)} was added to the version that the entry made of that time, "
            "and would be hidden with it or hide what is beneath",
            table=context.table,
            entry_id=entry_id,
            hint="Revert those pushes first, or overwrite the time under a new lock.",
        )


def check_covers(context: Context, stored: StoredLineage, entry: LineageEntry, guard: Guard, looked: Looked) -> None:
    """A rewrite that founds a version, and carries nothing into it, replaces all that readers see beneath it: a revert
    may have brought something back since it locked the time, or a loss. Raises :class:`EndRefusedError`
    (``not-covered``)."""
    rewrite = guard.rewrite
    if rewrite is None or rewrite.partitions:
        return
    replaced = set(entry.segments_from)
    known = [one for one in registered(context, stored, rewrite.interval, looked) if one.settled]
    places = (place for one in known for place in places_of(one.entry_id, one.interval, one.record))
    seen = overlay(context.table, stored.lineage, hidden_names(stored.lineage), places).visible
    if left := [one.name for one in known if one.name in seen and one.name not in replaced]:
        raise EndRefusedError(
            "not-covered",
            f"end refused: {describe(left)} is visible in its time chunk and not in its 'from', and would be hidden",
            table=context.table,
            entry_id=entry.entry_id,
            hint="Compact again.",
        )


def check_not_gone_back(
    context: Context, stored: StoredLineage, entry: LineageEntry, guard: Guard, looked: Looked
) -> None:
    """Readers have not gone back from what the entry replaces: a segment that was made together with it may have been
    lost since it was started. Then they see what both were made from, and that would be hidden. Looks only when a
    rewrite brought some of it that can still be gone back from. Raises :class:`EndRefusedError` (``from-not-seen``)."""
    rewriters = stored.lineage.rewriters
    rewritten = [name for name in entry.segments_from if name in rewriters]
    if not rewritten:
        return
    where = ALL_TIME if guard.rewrite is None else guard.rewrite.interval
    known = [one for one in registered(context, stored, where, looked) if one.settled]
    back = gone_back_from(stored.lineage, [Placed(one.entry_id, one.interval, one.record, one.place) for one in known])
    there = {one.name for one in known if one.entry_id not in back}
    if gone := [name for name in rewritten if name not in there]:
        raise EndRefusedError(
            "from-not-seen",
            f"end refused: {describe(gone)} of 'from', or what was made together with it, was lost, "
            "and readers have gone back to what that was made from",
            table=context.table,
            entry_id=entry.entry_id,
            hint="Revert the entry with force, and run the work again.",
        )


def check_not_beneath(context: Context, stored: StoredLineage, entry: LineageEntry, guard: Guard) -> None:
    """Nothing that a revert brings back lies beneath a newer version, where nobody would see it: of what the entry
    replaced, and of what only its own version hid. Raises :class:`RevertRefusedError` (``beneath-version``)."""
    if not entry.joined_from and not guard.locks:
        return
    if newest_version(context.locks.read().counters, ALL_TIME) <= APPEND_VERSION:
        return
    back = set(entry.segments_from)
    settled = [one for one in registered(context, stored, ALL_TIME) if one.settled]
    others = [one for one in settled if one.entry_id != entry.entry_id]
    versions, tops = Versions(others), Versions(one for one in others if one.name not in back)
    for one in [*(one for one in others if one.name in back), *_uncovered(stored, entry, settled, versions)]:
        if over := tops.above(one, among=versions):
            raise RevertRefusedError(
                "beneath-version",
                f"revert refused: {one.name!r} would come back beneath {over.name!r}, version {over.place.version}",
                table=context.table,
                entry_id=entry.entry_id,
                hint=f"Revert entry {over.entry_id} first, or push the old data again.",
            )


def _uncovered(
    stored: StoredLineage, entry: LineageEntry, settled: Sequence[Known], after: Versions
) -> Iterator[Known]:
    """What the entry overwrote, where its own segments have been carried above that since."""
    own = [one for one in settled if one.entry_id == entry.entry_id]
    carried = Versions(own) if any(after.has(up) for one in own for up in one.record.upgrades) else Versions(())
    hidden = hidden_names(stored.lineage)
    return (
        one
        for one in settled
        if one.entry_id != entry.entry_id and one.name not in hidden and carried.above(one, among=after)
    )


def _of_entry(context: Context, stored: StoredLineage, entry_id: str) -> list[Known]:
    found = context.registry.of_entry(entry_id)
    if not any(record.place for shard in found for record in shard.records[:1]):
        return []
    spans = [shard.name.interval for shard in found]
    whole = Interval(min(one.start_ms for one in spans), max(one.end_ms for one in spans))
    return [one for one in registered(context, stored, whole) if one.entry_id == entry_id]


def _settled(
    context: Context,
    stored: StoredLineage,
    entry_id: str,
    versions: Iterable[Version],
    looked: Looked | None = None,
) -> list[Known]:
    """Registered segments of the time of those versions that settled entries other than this one brought."""
    spans = [one for one, _ in versions]
    whole = Interval(min(one.start_ms for one in spans), max(one.end_ms for one in spans))
    known = registered(context, stored, whole, looked)
    return [one for one in known if one.settled and one.entry_id != entry_id]
