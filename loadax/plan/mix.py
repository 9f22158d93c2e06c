"""Mixtures: several orders interleaved in exact proportions.

Weights are integers, one per part, and their sum is the length of a block: every block of positions holds exactly
`weights[i]` rows of part i. The order within a block is one of a few patterns, drawn once from the seed. So the part at
any position, and the number of earlier rows of that part, are looked up and never counted. In version 2, the pattern of
every block is rotated by a random number of slots, so that every place of a block is as likely to be of a part as any
other: in version 1, a place has the share that the few patterns happen to give it. Each part goes through its
own epochs at its own pace. An epoch of the mixture ends as `stop` says; the next one continues the mixture, and every
part, at that point.

A schedule sets weights from given positions on. A position does not depend on weights that are scheduled after it, and
a part continues where it was when the weights change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax import seeds
from loadax.core.arguments import MOST_POSITIONS
from loadax.errors import ArgumentError, ScheduleError
from loadax.plan.order import BaseOrder, join_hits, parts_text
from loadax.plan.parts import Parts
from loadax.protocols import Hits, Integers, NarrowRule, Order, Visits

Stop = Literal["first", "all", "never"]

# Size of an endless mixture: more positions than any run reaches
ENDLESS = MOST_POSITIONS

_VERSION = 1  # of this order, in saved states
_ENDLESS_VERSION = 2  # of an endless mixture; in version 1 the third epoch began at a position beyond int64
_ROTATED_VERSION = 3  # of a mixture of version 2
# positions between the epochs of an endless mixture, and number of distinct epochs
_FAR, _FAR_EPOCHS = 1 << 40, 1 << 21
_PATTERN_CELLS = 1 << 18  # total size of a block's patterns
_MOST_PATTERNS = 64


class Segment(NamedTuple):
    """Weights from position `start` on: `weights[i]` positions of part i in every block."""

    start: int
    weights: tuple[int, ...]


class _Patterns(NamedTuple):
    """Possible orders of a block, each array int64[patterns, block size].

    Args:
        part: Part of each slot.
        rank: Number of earlier slots of that part in the block.
        slots: Slots sorted by part.
        keys: Each slot of `slots` with its pattern and part as one number, ascending, int64[patterns * block size].
    """

    part: NDArray[np.int64]
    rank: NDArray[np.int64]
    slots: NDArray[np.int64]
    keys: NDArray[np.int64]

    def before(self, pattern: Integers, part: Any, slot: Integers, weights: tuple[int, ...]) -> Integers:
        """Number of slots of a part before a slot of a pattern."""
        size = self.part.shape[1]
        first = (np.cumsum(weights) - weights)[part]
        found = np.searchsorted(self.keys, (pattern * len(weights) + part) * size + slot)
        return found - pattern * size - first


@lru_cache(maxsize=64)
def _patterns(seed: int, weights: tuple[int, ...]) -> _Patterns:
    size = sum(weights)
    count = max(1, min(_MOST_PATTERNS, _PATTERN_CELLS // size))
    parts = np.repeat(np.arange(len(weights)), weights)
    keys = seeds.derive(seed, "mix", *weights, np.arange(count))
    part = parts[seeds.permute(np.arange(size)[None], size, keys[:, None])]
    order = np.argsort(part, axis=1, kind="stable")
    before = np.cumsum(weights) - weights
    rank = np.empty_like(part)
    sorted_parts = np.take_along_axis(part, order, axis=1)
    np.put_along_axis(rank, order, np.arange(size) - before[sorted_parts], axis=1)
    keys = (np.arange(count)[:, None] * len(weights) + sorted_parts) * size + order
    return _Patterns(part, rank, order, keys.reshape(-1))


@final
@dataclass(frozen=True)
class Mixed(BaseOrder):
    """Several orders, mixed. The rows of part i come after all rows of the sources before it.

    Args:
        parts: Orders of the parts; none is empty.
        rows: Number of rows of each part's source.
        names: Names of the parts.
        segments: Segments of the schedule, ascending from 0; no block is empty. They begin at positions of the mixture,
            counted over all epochs.
        seed: Seed of the patterns.
        stop: End of an epoch: "first": before a part would start its next epoch; "all": when every part has finished
            one; "never".
        by_step: Whether segments begin at steps instead, which only a run can convert: see `at_positions`.
        version: Version of the order within blocks, 1 or 2.
    """

    parts: tuple[Order, ...]
    rows: tuple[int, ...]
    names: tuple[str, ...]
    segments: tuple[Segment, ...]
    seed: int
    stop: Stop
    by_step: bool = False
    version: int = 1
    varies = True
    parent = None

    @cached_property
    def size(self) -> int:
        """Number of positions in an epoch.

        Raises:
            ArgumentError: When `stop` waits for a part that is never drawn to its end.
            ScheduleError: When the size depends on the batch size.
        """
        if self.by_step:
            raise ScheduleError(
                "the length of a mixture that is scheduled by step depends on the batch size: pass it to a Dataloader "
                "as it is, without another verb after mix(), or schedule by example"
            )
        if self.stop == "never":
            return ENDLESS
        # A part that is an endless mixture never finishes an epoch.
        ends = [
            None if order.size >= ENDLESS else self.position_of_draw(part, order.size - (self.stop == "all"))
            for part, order in enumerate(self.parts)
        ]
        if self.stop == "first":
            known = [end for end in ends if end is not None]
            return min(known) if known else ENDLESS
        for name, end in zip(self.names, ends, strict=True):
            if end is None:
                raise ArgumentError(
                    f"stop='all': the weights never draw all of {name!r}, or it is endless; pass another stop="
                )
        return max(end for end in ends if end is not None) + 1

    def at_positions(self, batch_sizes: Sequence[tuple[int, int]], num_epochs: int | None) -> "Mixed":
        """The same order with weights that change at positions instead of steps.

        Args:
            batch_sizes: `(first step, batch size)`: each applies until the next one begins.
            num_epochs: Number of epochs of the run; None: endless.

        Raises:
            ArgumentError: When weights change after the first epoch.
        """

        def position(step: int) -> int:
            ends = [first for first, _ in batch_sizes[1:]] + [step]
            return sum(
                max(0, min(end, step) - first) * size for (first, size), end in zip(batch_sizes, ends, strict=True)
            )

        segments = tuple(Segment(position(segment.start), segment.weights) for segment in self.segments)
        known = replace(self, segments=segments, by_step=False)
        last = segments[-1].start
        # The first step of a later epoch depends on `remainder`.
        if num_epochs != 1 and last + batch_sizes[-1][1] > known.size:
            raise ArgumentError(
                f"weights are scheduled from step {self.segments[-1].start} on, which is example {last}, "
                f"but an epoch has only {known.size} examples; schedule by example, or pass stop='never' to mix()"
            )
        return known

    def until(self, epoch: int, position: int) -> "Mixed":
        """The same order without the weights that are scheduled from a position of an epoch on."""
        end = self.begin(epoch) + position
        past = tuple(segment for segment in self.segments if segment.start < end)
        return replace(self, segments=past or self.segments[:1])

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        part, draws = self.draws(self.begin(epochs) + positions if epochs.any() else positions)
        inner, positions_of_part = np.divmod(draws, self._below.sizes[part])
        return self._below.visits(part, inner, positions_of_part)

    def begin(self, epochs: Any) -> Any:
        """Positions at which epochs (an int, or int64[n]) begin, counted over all epochs.

        An endless mixture has several epochs if it is sliced: they are so far apart that no slice reaches the next one.
        """
        return epochs % _FAR_EPOCHS * _FAR if self.size >= ENDLESS else epochs * self.size

    def draws(self, positions: Integers) -> tuple[Integers, Integers]:
        """Part of each position (counted over all epochs), and the number of earlier draws of that part."""
        part, draws = np.empty_like(positions), np.empty_like(positions)
        which = np.searchsorted(self._starts, positions, side="right") - 1
        for index in np.unique(which).tolist():
            segment, before = self.segments[index], self._before[index]
            chosen = np.flatnonzero(which == index) if len(self.segments) > 1 else slice(None)
            patterns = _patterns(self.seed, segment.weights)
            block, slot = np.divmod(positions[chosen] - segment.start, sum(segment.weights))
            pattern, turn = self._pattern(block, patterns)
            slot = (slot + turn) % sum(segment.weights)
            drawn, weights = patterns.part[pattern, slot], np.asarray(segment.weights)
            rank = patterns.rank[pattern, slot]
            if self.version > 1:
                rank = (rank - patterns.before(pattern, drawn, turn, segment.weights)) % weights[drawn]
            part[chosen] = drawn
            draws[chosen] = before[drawn] + block * weights[drawn] + rank
        return part, draws

    def counts(self, position: int) -> Integers:
        """Number of draws of each part before a position, counted over all epochs."""
        index = int(np.searchsorted(self._starts, position, side="right")) - 1
        return self._counts(self.segments[index], self._before[index], position)

    def position_of_draw(self, part: int, draw: int) -> int | None:
        """Position, counted over all epochs, of the `draw`-th row (from 0) of a part; None if it is never drawn."""
        position = int(self.positions_of_draws(part, np.array([draw], np.int64))[0])
        return None if position < 0 else position

    def positions_of_draws(self, part: int, draws: Integers) -> Integers:
        """Same as `position_of_draw`, vectorised; -1 for draws that never happen."""
        positions = np.full(len(draws), -1, np.int64)
        firsts = np.array([int(before[part]) for before in self._before])
        # Of several segments that begin at the same draw, only the last draws the part.
        which = np.searchsorted(firsts, draws, side="right") - 1
        for index in np.unique(which).tolist():
            segment = self.segments[index]
            share = segment.weights[part]
            if share:
                chosen = np.flatnonzero(which == index)
                patterns = _patterns(self.seed, segment.weights)
                block, rank = np.divmod(draws[chosen] - firsts[index], share)
                pattern, turn = self._pattern(block, patterns)
                if self.version > 1:
                    rank = (rank + patterns.before(pattern, part, turn, segment.weights)) % share
                slots = (patterns.slots[pattern, sum(segment.weights[:part]) + rank] - turn) % sum(segment.weights)
                positions[chosen] = segment.start + block * sum(segment.weights) + slots
        return positions

    def inverse(self, rows: Integers, epochs: Integers, window: tuple[int, int]) -> Hits:
        # A part's draws are counted over all epochs, so counts at the window's ends tell which draws are in it.
        hits = []
        first_rows = [0, *self._below.row_ends.tolist()]
        for epoch in np.unique(epochs).tolist():
            begin = self.begin(epoch)
            drawn = [self.counts(begin + end) for end in window]
            for index, part in enumerate(self.parts):
                low, high = int(drawn[0][index]), int(drawn[1][index])
                owned = (rows >= first_rows[index]) & (rows < first_rows[index + 1])
                asked = np.flatnonzero((epochs == epoch) & owned)
                if not len(asked) or low >= high:
                    continue
                passes = np.arange(low // part.size, (high - 1) // part.size + 1)
                question, inner = (grid.ravel() for grid in np.meshgrid(asked, passes, indexing="ij"))
                # Several passes may all match; of an endless part, only the window can be searched.
                within = (low % part.size, (high - 1) % part.size + 1) if len(passes) == 1 else (0, part.size)
                below = part.inverse(rows[question] - first_rows[index], inner, within)
                draws = inner[below.asked] * part.size + below.positions
                met = np.flatnonzero((draws >= low) & (draws < high))
                positions = self.positions_of_draws(index, draws[met]) - begin
                hits.append(Hits(question[below.asked[met]], positions))
        return join_hits(hits)

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:  # noqa: ARG002
        raise ArgumentError(
            f"{verb}() after mix() would break its proportions; call it before: mix({{name: ds.{verb}(…)}}, …)"
        )

    def describe(self) -> list[Any]:
        parts = [
            [name, rows, part.describe()] for name, rows, part in zip(self.names, self.rows, self.parts, strict=True)
        ]
        version = _ENDLESS_VERSION if self.stop == "never" else _VERSION
        version = _ROTATED_VERSION if self.version > 1 else version
        segments = [[segment.start, list(segment.weights)] for segment in self.segments]
        return [["mix", parts, segments, self.seed, self.stop, version]]

    def text(self) -> list[str]:
        weights = ", ".join(
            ":".join(map(str, segment.weights)) + f" from position {segment.start:,} on" * bool(segment.start)
            for segment in self.segments
        )
        parts = parts_text(zip(self.names, self.parts, strict=True))
        version = f", version={self.version}" * (self.version > 1)
        return [f"mix(seed={self.seed}, stop={self.stop!r}{version}) {weights}: {parts}"]

    @cached_property
    def _below(self) -> Parts:
        return Parts(self.parts, self.rows)

    @cached_property
    def _starts(self) -> Integers:
        return np.array([segment.start for segment in self.segments])

    @cached_property
    def _before(self) -> list[Integers]:
        """Number of draws of each part before each segment."""
        before = [np.zeros(len(self.parts), np.int64)]
        for segment, following in zip(self.segments, self.segments[1:], strict=False):
            before.append(self._counts(segment, before[-1], following.start))
        return before

    def _counts(self, segment: Segment, before: Integers, position: int) -> Integers:
        block, slot = divmod(position - segment.start, sum(segment.weights))
        patterns = _patterns(self.seed, segment.weights)
        pattern, turn = (int(values[0]) for values in self._pattern(np.array([block]), patterns))
        begun = np.roll(patterns.part[pattern], -turn)[:slot]
        return before + block * np.asarray(segment.weights) + np.bincount(begun, minlength=len(self.parts))

    def _pattern(self, block: Integers, patterns: _Patterns) -> tuple[Integers, Integers]:
        """Pattern of each block, and the slot of it that the block begins with."""
        pattern = (seeds.derive(self.seed, "pattern", block) % np.uint64(len(patterns.part))).astype(np.int64)
        if self.version == 1:
            return pattern, np.zeros_like(pattern)
        turn = seeds.derive(self.seed, "rotation", block) % np.uint64(patterns.part.shape[1])
        return pattern, turn.astype(np.int64)
