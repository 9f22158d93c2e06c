"""Where a record stands: the inverse of an order, and of a plan.

As an order is a chain of small arithmetic steps, so is its inverse: each verb turns the positions that the one before
it gave into its own. Nothing is searched for, but for a binary search in the list of a keep-list, so it costs in
proportion to how often the record is met.
"""

from typing import NamedTuple

import numpy as np

from loadax.plan.batches import BatchPlan
from loadax.plan.blocks import BlockShuffled
from loadax.plan.lanes import in_step
from loadax.plan.mix import Mixed
from loadax.plan.order import Concatenated, Excluding, OwnEpochs, Repeated, Sequential, Shuffled, Sliced, Subset
from loadax.protocols import Integers, Order
from loadax.seeds import derive, unpermute

_CHUNK = 1 << 20  # positions that are looked at at a time, where an order has no inverse


class Place(NamedTuple):
    """Where a run meets a record: in which step, at which position of the batch."""

    step: int
    position: int


class Hits(NamedTuple):
    """Positions at which something that was asked for stands: `positions[i]` is that of question number `asked[i]`.

    Both int64[n].
    """

    asked: Integers
    positions: Integers


def find(plan: BatchPlan, row: int, steps: range) -> list[Place]:
    """Where these steps of a run meet a row: exactly where `plan.visits` has it, in order.

    Args:
        plan: of the run.
        row: of the source.
        steps: to look at, one after another.
    """
    if not len(steps):
        return []
    numbers = plan.skips.number(steps[0]), plan.skips.number(steps[-1])
    (first_epoch, low), (last_epoch, high) = (plan.place_of(number) for number in numbers)
    size = plan.order.size
    window = (low, min(high + plan.batch_size_of(numbers[1]), size)) if first_epoch == last_epoch else (0, size)
    epochs = np.arange(first_epoch, last_epoch + 1, dtype=np.int64)
    hits = positions_of(plan.order, np.full_like(epochs, row), epochs, window)
    places = [
        _place(plan, int(epochs[asked]), position)
        for asked, position in zip(hits.asked, hits.positions.tolist(), strict=True)
    ]
    return sorted(place for place in places if place is not None and place.step in steps)


def _place(plan: BatchPlan, epoch: int, position: int) -> Place | None:
    """The step that a position of an epoch belongs to; None when it is left out."""
    number, offset = plan.step_at(epoch, position)
    if plan.place_of(number) != (epoch, position - offset) or plan.skips.holds(number):
        return None  # of the remainder that is dropped, or skipped
    start = position - offset
    count = min(plan.batch_size_of(number), plan.order.size - start)
    deals = plan.order.deals(epoch, start, start + count)
    if deals:
        offset = int(in_step(start, count, deals, np.array([offset], np.int64))[0])
    return Place(plan.skips.left(number), offset)


def positions_of(order: Order, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
    """At which positions of an order rows stand.

    Args:
        order: any.
        rows: to ask for, those of the order's source.
        epochs: of the order, one for each row.
        window: `(start, stop)`: the positions to look at, in every epoch. What stands elsewhere may be there too.
    """
    if window[0] >= window[1]:
        return _none()
    match order:
        case Sequential() | OwnEpochs():
            asked = np.flatnonzero((rows >= 0) & (rows < order.size))
            hits = Hits(asked, rows[asked])
        case Shuffled(parent=parent):
            below = positions_of(parent, rows, epochs, (0, parent.size))
            keys = derive(order.seed, "shuffle", epochs[below.asked])
            hits = below if not parent.size else Hits(below.asked, unpermute(below.positions, parent.size, keys))
        case BlockShuffled(parent=parent):
            hits = _in_blocks(order, positions_of(parent, rows, epochs, (0, parent.size)), epochs)
        case Sliced(parent=parent, start=start, step=step):
            ends = (start + window[0] * step, start + (window[1] - 1) * step)
            below = positions_of(parent, rows, epochs, (max(min(ends), 0), max(ends) + 1))
            place, beside = np.divmod(below.positions - start, step)
            hits = _where(Hits(below.asked, place), (beside == 0) & (place >= 0) & (place < order.size))
        case Repeated(parent=parent):
            hits = _in_turns(order, rows, epochs, window)
        case Concatenated():
            hits = _in_parts(order, rows, epochs, window)
        case Subset(parent=parent, positions=kept):
            if not len(kept):
                return _none()
            below = positions_of(parent, rows, epochs, (int(kept[window[0]]), int(kept[window[1] - 1]) + 1))
            place = np.minimum(np.searchsorted(kept, below.positions), len(kept) - 1)
            hits = _where(Hits(below.asked, place), kept[place] == below.positions)
        case Excluding(parent=parent, missing=missing):
            below = positions_of(parent, rows, epochs, (0, parent.size))
            place = np.searchsorted(missing, below.positions)
            there = np.append(missing, -1)[place] != below.positions
            hits = _where(Hits(below.asked, below.positions - place), there)
        case Mixed():
            hits = _in_mixture(order, rows, epochs, window)
        case _:
            hits = _by_looking(order, rows, epochs, window)
    return hits


def _in_blocks(order: BlockShuffled, below: Hits, epochs: Integers) -> Hits:
    found = np.empty_like(below.positions)
    epoch_of = epochs[below.asked]
    for epoch in np.unique(epoch_of).tolist():
        mine = np.flatnonzero(epoch_of == epoch)
        found[mine] = order.shuffled(epoch, below.positions[mine])
    return Hits(below.asked, found)


def _in_turns(order: Repeated, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
    size = order.parent.size
    if not size or window[0] >= window[1]:
        return _none()
    turns = np.arange(window[0] // size, (window[1] - 1) // size + 1)
    # One turn: what is asked for lies within it. Several: all of each may be asked for.
    inner = (window[0] - int(turns[0]) * size, window[1] - int(turns[0]) * size) if len(turns) == 1 else (0, size)
    asked, turn = (each.ravel() for each in np.meshgrid(np.arange(len(rows)), turns, indexing="ij"))
    below = positions_of(order.parent, rows[asked], epochs[asked] * order.times + turn, inner)
    return Hits(asked[below.asked], turn[below.asked] * size + below.positions)


def _in_parts(order: Concatenated, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
    found, first_row, start = [_none()], 0, 0
    for part, count in zip(order.parts, order.rows, strict=True):
        asked = np.flatnonzero((rows >= first_row) & (rows < first_row + count))
        inner = max(window[0] - start, 0), min(window[1] - start, part.size)
        if len(asked) and inner[0] < inner[1]:
            below = positions_of(part, rows[asked] - first_row, epochs[asked], inner)
            found.append(Hits(asked[below.asked], start + below.positions))
        first_row, start = first_row + count, start + part.size
    return _together(found)


def _in_mixture(order: Mixed, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
    """A part's draws are counted on over all epochs of the mixture.

    Which ones lie within the window follows from how often it was drawn.
    """
    found = [_none()]
    firsts = np.cumsum([0, *order.rows])
    for epoch in np.unique(epochs).tolist():
        begin = order.begin(epoch)
        drawn = [order.counts(begin + end) for end in window]
        for number, part in enumerate(order.parts):
            low, high = int(drawn[0][number]), int(drawn[1][number])
            asked = np.flatnonzero((epochs == epoch) & (rows >= firsts[number]) & (rows < firsts[number + 1]))
            if not len(asked) or low >= high:
                continue
            passes = np.arange(low // part.size, (high - 1) // part.size + 1)
            question, inner = (each.ravel() for each in np.meshgrid(asked, passes, indexing="ij"))
            # Of several passes all may be met; of one that never ends, only what is asked for can be looked through.
            within = (low % part.size, (high - 1) % part.size + 1) if len(passes) == 1 else (0, part.size)
            below = positions_of(part, rows[question] - firsts[number], inner, within)
            draws = inner[below.asked] * part.size + below.positions
            met = np.flatnonzero((draws >= low) & (draws < high))
            found.append(Hits(question[below.asked[met]], order.positions_of(number, draws[met]) - begin))
    return _together(found)


def _by_looking(order: Order, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
    """For orders of other people: looks at every position. Costs in proportion to the window."""
    found = [_none()]
    for epoch in np.unique(epochs).tolist():
        asked = np.flatnonzero(epochs == epoch)
        for start in range(window[0], window[1], _CHUNK):
            positions = np.arange(start, min(start + _CHUNK, window[1]), dtype=np.int64)
            met = order.visits(np.full_like(positions, epoch), positions).rows
            for question in asked.tolist():
                mine = positions[met == rows[question]]
                found.append(Hits(np.full_like(mine, question), mine))
    return _together(found)


def _where(hits: Hits, there: Integers) -> Hits:
    return Hits(hits.asked[there], hits.positions[there])


def _none() -> Hits:
    return Hits(np.empty(0, np.int64), np.empty(0, np.int64))


def _together(found: list[Hits]) -> Hits:
    return Hits(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
