"""The resolver: which rows of a batch become the newest of their keys. One pure function, for a whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from airflow_provider_segments.upsert.events import ORDER, Column, IngestionUpsertEvents


@dataclass(frozen=True, slots=True, eq=False)
class Resolution:
    """Row numbers of a batch, each in exactly one of three: ``winners`` are the newest of their keys from now on,
    ``losers`` are older than a row that was there or than a later one of the same batch, ``replays`` had been there.
    ``ended`` are numbers of holders that ``winners`` take the place of. ``late`` are the losers that are older than
    what their keys had before the batch."""

    winners: Column
    losers: Column
    replays: Column
    ended: Column
    late: Column


def resolve(batch: IngestionUpsertEvents, holders: IngestionUpsertEvents) -> Resolution:
    """Compare ``batch`` with ``holders``, the newest row of each of its keys that has one.

    Newer is greater by :data:`~.events.ORDER`, and strictly so: a row that is there already, sent once more, changes
    nothing. The order in which rows arrive does not matter. Of several rows of a key in the batch only the newest can
    become visible: a batch is one version.
    """
    both = IngestionUpsertEvents.concat([holders, batch])
    order, same_key, replay = replays_and_order(both)
    kept = order[~replay]
    first = ~same_key[~replay]
    newest = numpy.ones(len(kept), bool)
    newest[:-1] = first[1:]
    from_batch = kept >= len(holders)
    late = from_batch & (numpy.arange(len(kept)) < _holder_places(first, ~from_batch))
    return Resolution(
        winners=numpy.sort(kept[newest & from_batch] - len(holders)),
        losers=numpy.sort(kept[~newest & from_batch] - len(holders)),
        replays=numpy.sort(order[replay] - len(holders)),
        ended=numpy.sort(kept[~newest & ~from_batch]),
        late=numpy.sort(kept[late] - len(holders)),
    )


def _holder_places(first: Column, is_holder: Column) -> Column:
    """Of each row, ordered by key, where the holder of its key is; -1 where its key has none. ``first`` says where keys
    begin."""
    key = numpy.cumsum(first) - 1
    places = numpy.full(int(first.sum()), -1)
    places[key[is_holder]] = numpy.flatnonzero(is_holder)
    found: Column = places[key]
    return found


def replays_and_order(rows: IngestionUpsertEvents) -> tuple[Column, Column, Column]:
    """Row numbers by key and then from the oldest to the newest, and of each in that order: whether it has the key of
    the one before, and whether it is the one before, sent again."""
    order = _order(rows)
    same_key = _equal_to_last(rows, order, ("high", "low"))
    return order, same_key, same_key & _equal_to_last(rows, order, ORDER)


def _order(rows: IngestionUpsertEvents) -> Column:
    """Row numbers by key, then from the oldest to the newest; of equal ones the holder, which is first, comes first."""
    keys = [rows.high, rows.low, *(getattr(rows, name) for name in ORDER)]
    return numpy.lexsort([key for key in reversed(keys) if len(key) and key.min() != key.max()] or [rows.high])


def _equal_to_last(rows: IngestionUpsertEvents, order: Column, names: tuple[str, ...]) -> Column:
    """Whether a row has the same values as the one before it."""
    equal = numpy.zeros(len(order), bool)
    if len(order):
        equal[1:] = True
    for name in names:
        values = getattr(rows, name)[order]
        equal[1:] &= values[1:] == values[:-1]
    return equal
