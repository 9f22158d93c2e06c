"""Mixtures: several orders interleaved in exact proportions.

Weights are integers, one per part, and their sum is the length of a block: every block of positions holds exactly
`weights[i]` rows of part i. The order within a block is one of a few patterns, drawn once from the seed. So the part at
any position, and the number of earlier rows of that part, are looked up and never counted. From version 2 on, the
pattern of every block is rotated by a random number of slots, so that every place of a block is as likely to be of a
part as any other: in version 1, a place has the share that the few patterns happen to give it. In version 3, patterns
are even (see `loadax.plan.even`), and a large block has one of its own, which is computed where it is looked at.

Each part goes through its own epochs at its own pace. An epoch of the mixture ends as `stop` says; the next one
continues the mixture, and every part, at that point.

A schedule sets weights from given positions on. A position does not depend on weights that are scheduled after it, and
a part continues where it was when the weights change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, final

import numpy as np

from loadax import seeds
from loadax.core.arguments import MOST_POSITIONS
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError, ScheduleError
from loadax.plan.even import EvenPatterns
from loadax.plan.order import join_hits, parts_text
from loadax.plan.part_orders import OrderOfParts, by_part
from loadax.plan.token_turns import PartTokens, TokenTurns
from loadax.protocols import Hits, Integers, NarrowRule, Order, Visits

Stop = Literal["first", "all", "never"]

# Size of an endless mixture: more positions than any run reaches
ENDLESS = MOST_POSITIONS

_VERSION = 1  # of this order, in saved states
# of an endless mixture; in version 1 the third epoch began at a position beyond int64
_ENDLESS_VERSION = 2
_ROTATED_VERSION = 3  # of a mixture of version 2
_EVEN_VERSION = 4  # of a mixture of version 3
_TOKENS_VERSION = 5  # of a mixture by tokens
EVEN = 3  # the version of mixtures whose patterns are even
# positions between the epochs of an endless mixture, and number of distinct epochs
_FAR = 1 << 40
_FAR_EPOCHS = 1 << 21
_PATTERN_CELLS = 1 << 18  # total size of a block's patterns
_MOST_PATTERNS = 64
# slots of even patterns; larger ones are computed at each look
_MOST_LOOKED_UP = _PATTERN_CELLS // _MOST_PATTERNS
_FEWEST_SLOTS = 1024  # of a pattern that are computed together
_TOGETHER = 64  # segments whose draws are counted together: bounds the memory


class Segment(NamedTuple):
    """Weights from position `start` on: `weights[i]` positions of part i in every block."""

    start: int
    weights: tuple[int, ...]


@final
class Patterns:
    """Possible orders of a block. Each is computed when it is needed, and only as far as it is.

    Args:
        seed: Seed of the mixture.
        weights: Number of slots of each part.
        even: Patterns to look up; None: random ones.
    """

    _sorted: Integers  # see `_by_part`

    def __init__(
        self, seed: int, weights: tuple[int, ...], even: EvenPatterns | None = None
    ):
        self._even = even
        self.weights = np.array(weights, np.int64)
        self.size = sum(weights)
        self.count = int(_count_of(self.size))
        self._keys = seeds.derive(seed, "mix", *weights, np.arange(self.count))
        self._firsts = np.cumsum(self.weights) - self.weights
        # NumPy sorts small integers by radix.
        self._parts = np.repeat(
            np.arange(len(weights), dtype=np.min_scalar_type(len(weights))), weights
        )
        shape = self.count, self.size
        # slots of each pattern that are in these two arrays
        self._known = np.zeros(self.count, np.int64)
        self._part = np.empty(shape, self._parts.dtype)
        self._rank = np.empty(shape, np.int32)

    @property
    def _by_part(self) -> Integers:
        """Slots sorted by part, each with its pattern and part as one number, int64[patterns, block size].

        It is ascending as a whole: a pattern that is not known in full has the lowest number of its row throughout.
        """
        if "_sorted" not in vars(self):
            unknown = np.repeat(
                np.arange(self.count)[:, None] * (len(self.weights) * self.size),
                self.size,
                axis=1,
            )
            # Threads fill one table; from Python 3.12 on, each would get its own from a `cached_property`.
            vars(self).setdefault("_sorted", unknown)
        return self._sorted

    def draws(self, pattern: Integers, slot: Integers) -> tuple[Integers, Integers]:
        """Part of a slot of a pattern, and the number of earlier slots of that part."""
        self._extend(pattern, slot)
        return self._part[pattern, slot].astype(np.int64), self._rank[
            pattern, slot
        ].astype(np.int64)

    def before(self, pattern: Integers, part: Integers, slot: Integers) -> Integers:
        """Number of slots of a part before a slot of a pattern."""
        self._extend(pattern, self.size - 1)
        found = np.searchsorted(
            self._by_part.reshape(-1),
            (pattern * len(self.weights) + part) * self.size + slot,
        )
        return found - pattern * self.size - self._firsts[part]

    def slots(self, pattern: Integers, part: Integers, rank: Integers) -> Integers:
        """Slot of a pattern that has `rank` earlier slots of its part."""
        self._extend(pattern, self.size - 1)
        return self._by_part[pattern, self._firsts[part] + rank] % self.size

    def _extend(self, pattern: Integers, slot: Any) -> None:
        """Computes the patterns up to and including some of their slots, where they are not known that far."""
        missing = self._known[pattern] <= slot
        if not missing.any():
            return
        rows = np.unique(pattern[missing])
        # Twice as far each time, so that a run through a large block computes each slot about twice.
        stop = min(
            max(
                int(np.max(slot)) + 1, 2 * int(self._known[rows].max()), _FEWEST_SLOTS
            ),
            self.size,
        )
        if self._even is None:
            part = self._parts[
                seeds.permute(
                    np.arange(stop)[None], self.size, self._keys[rows, None]
                )
            ]
        else:
            pattern = np.repeat(rows, stop)
            slots = np.tile(np.arange(stop), len(rows))
            part = (
                self._even.draws(pattern, slots)[0]
                .reshape(len(rows), stop)
                .astype(self._parts.dtype)
            )
        order = np.argsort(part, axis=1, kind="stable")
        ordered = np.take_along_axis(part, order, axis=1)
        # in the sorted row, where the run of equal parts begins
        first = np.zeros(part.shape, np.int32)
        first[:, 1:] = np.where(
            ordered[:, 1:] != ordered[:, :-1], np.arange(1, stop), 0
        )
        rank = np.empty_like(first)
        np.put_along_axis(
            rank,
            order,
            np.arange(stop, dtype=np.int32) - np.maximum.accumulate(first, axis=1),
            axis=1,
        )
        self._part[rows, :stop], self._rank[rows, :stop] = part, rank
        if stop == self.size:
            self._by_part[rows] = (
                rows[:, None] * len(self.weights) + ordered
            ) * self.size + order
        self._known[rows] = stop  # last, for other threads


@lru_cache(maxsize=64)
def patterns_of(
    seed: int, weights: tuple[int, ...], version: int = 1
) -> "Patterns | EvenPatterns":
    """The patterns of the blocks of these weights."""
    if version < EVEN:
        return Patterns(seed, weights)
    even = EvenPatterns(seed, np.array([weights], np.int64))
    if even.size > _MOST_LOOKED_UP:
        return even
    return Patterns(seed, weights, even)


def _count_of(size: Any) -> Any:
    """Number of patterns of a block of `size` slots, an int or int64[n]."""
    return np.clip(_PATTERN_CELLS // size, 1, _MOST_PATTERNS)


@final
@dataclass(frozen=True)
class Mixed(OrderOfParts):
    """Several orders, mixed. The rows of part i come after all rows of the sources before it.

    Args:
        parts: Orders of the parts; none is empty.
        rows: Number of rows of each part's source.
        names: Names of the parts.
        segments: Segments of the schedule, ascending from 0; no block is empty. They begin at positions of the mixture,
            counted over all epochs.
        seed: Seed of the patterns.
        stop: End of an epoch: "first": before a part would start its next epoch; "all": when every part has finished
            one; "never"; or a number of positions.
        by_step: Whether segments begin at steps instead, which only a run can convert: see `at_positions`.
        version: Version of the order within blocks, 1 to 3.
        tokens: Tokens of the parts, of which the weights are shares; None: they are shares of rows.
    """

    names: tuple[str, ...]
    segments: tuple[Segment, ...]
    seed: int
    stop: Stop | int
    by_step: bool = False
    version: int = 1
    tokens: tuple[PartTokens, ...] | None = None
    varies = True
    mixes = True

    @property
    def repeats(self) -> bool:
        return self.stop != "first" or super().repeats

    @cached_property
    def size(self) -> int:
        """Number of positions in an epoch.

        Raises:
            ArgumentError: When `stop` waits for a part that is never drawn to its end.
            ScheduleError: When the size depends on the batch size.
        """
        if self.by_step:
            raise ScheduleError(
                "the length of a mixture that is scheduled by step depends on the "
                "batch size: pass it to a Dataloader as it is, without another verb "
                "after mix(), or schedule by example"
            )
        if isinstance(self.stop, int):
            return self.stop
        if self.stop == "never":
            return ENDLESS
        # A part that is an endless mixture never finishes an epoch.
        parts = np.flatnonzero(self._below.sizes < ENDLESS)
        ends = np.full(len(self.parts), -1)
        ends[parts] = self.positions_of_draws(
            parts, self._below.sizes[parts] - (self.stop == "all")
        )
        known = ends[ends >= 0]
        if self.stop == "first":
            if len(known):
                return int(known.min())
            return ENDLESS
        if len(known) < len(ends):
            name = self.names[int(np.argmin(ends))]
            raise ArgumentError(
                f"stop='all': the weights never draw all of {name!r}, or it is "
                "endless; pass another stop="
            )
        return int(ends.max()) + 1

    def at_positions(
        self, batch_sizes: Sequence[tuple[int, int]], num_epochs: int | None
    ) -> "Mixed":
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
                max(0, min(end, step) - first) * size
                for (first, size), end in zip(batch_sizes, ends, strict=True)
            )

        segments = tuple(
            Segment(position(segment.start), segment.weights)
            for segment in self.segments
        )
        known = replace(self, segments=segments, by_step=False)
        last = segments[-1].start
        # The first step of a later epoch depends on `remainder`.
        if num_epochs != 1 and last + batch_sizes[-1][1] > known.size:
            raise ArgumentError(
                f"weights are scheduled from step {self.segments[-1].start} on, "
                f"which is example {last}, but an epoch has only "
                f"{count_text(known.size, 'example')}; schedule by example, or pass "
                "stop='never' to mix()"
            )
        return known

    def until(self, epoch: int, position: int) -> "Mixed":
        """The same order without the weights that are scheduled from a position of an epoch on."""
        end = self.begin(epoch) + position
        past = tuple(segment for segment in self.segments if segment.start < end)
        return replace(self, segments=past or self.segments[:1])

    def reweighted(self, later: Sequence[Segment]) -> "Mixed":
        """The same order with other weights from the first of these segments on."""
        start = later[0].start
        past = tuple(segment for segment in self.segments if segment.start < start)
        made = replace(self, segments=(*past, *later))
        if past and len(later) == 1:  # what was drawn before is known
            known = [*self._before[: len(past)], self.counts(start)]
            vars(made)["_before"] = np.stack(known)
        return made

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        part, draws = self.draws(
            self.begin(epochs) + positions if epochs.any() else positions
        )
        inner, positions_of_part = np.divmod(draws, self._below.sizes[part])
        return self._below.visits(part, inner, positions_of_part)

    def begin(self, epochs: Any) -> Any:
        """Positions at which epochs (an int, or int64[n]) begin, counted over all epochs.

        An endless mixture has several epochs if it is sliced: they are so far apart that no slice reaches the next one.
        """
        if self.size >= ENDLESS:
            return epochs % _FAR_EPOCHS * _FAR
        return epochs * self.size

    def draws(self, positions: Integers) -> tuple[Integers, Integers]:
        """Part of each position (counted over all epochs), and the number of earlier draws of that part."""
        part = np.empty_like(positions)
        draws = np.empty_like(positions)
        which = np.searchsorted(self._starts, positions, side="right") - 1
        for index in np.unique(which).tolist():
            segment = self.segments[index]
            chosen = (
                np.flatnonzero(which == index)
                if len(self.segments) > 1
                else slice(None)
            )
            if self.tokens is not None:
                turns = positions[chosen] - segment.start
                part[chosen], draws[chosen] = self._turns(index).draws(turns)
                continue
            before = self._before[index]
            patterns = patterns_of(self.seed, segment.weights, self.version)
            block, slot = np.divmod(positions[chosen] - segment.start, patterns.size)
            pattern, turn = self._pattern(block, patterns.size)
            drawn, rank = patterns.draws(pattern, (slot + turn) % patterns.size)
            weights = patterns.weights[drawn]
            if self._rotates(patterns.size):
                rank = (rank - patterns.before(pattern, drawn, turn)) % weights
            part[chosen] = drawn
            draws[chosen] = before[drawn] + block * weights + rank
        return part, draws

    def counts(self, position: int) -> Integers:
        """Number of draws of each part before a position, counted over all epochs."""
        index = int(np.searchsorted(self._starts, position, side="right")) - 1
        if self.tokens is not None:
            return self._turns(index).counts(position - self.segments[index].start)
        return (
            self._before[index]
            + self._counts(slice(index, index + 1), np.array([position]))[0]
        )

    def positions_of_draws(self, parts: Integers, draws: Integers) -> Integers:
        """Position, counted over all epochs, of the `draws[i]`-th row (from 0) of part `parts[i]`; -1 if there is none.

        Args:
            parts: Indices of parts, int64[n].
            draws: Numbers of earlier draws of the part, int64[n].
        """
        positions = np.full(len(draws), -1, np.int64)
        which = np.zeros(len(draws), np.int64)
        for part in np.unique(parts).tolist() if len(self.segments) > 1 else []:
            chosen = parts == part
            # Of several segments that begin at the same draw, only the last draws the part.
            which[chosen] = (
                np.searchsorted(self._before[:, part], draws[chosen], side="right")
                - 1
            )
        for index in np.unique(which).tolist():
            if self.tokens is not None:
                chosen = np.flatnonzero(which == index)
                turns = self._turns(index).turns(parts[chosen], draws[chosen])
                start = self.segments[index].start
                positions[chosen] = np.where(turns < 0, -1, turns + start)
                continue
            patterns = patterns_of(
                self.seed, self.segments[index].weights, self.version
            )
            chosen = np.flatnonzero((which == index) & (patterns.weights[parts] > 0))
            part = parts[chosen]
            share = patterns.weights[part]
            block, rank = np.divmod(draws[chosen] - self._before[index, part], share)
            met = block <= ENDLESS // patterns.size  # no run reaches later ones
            chosen, part, share, block, rank = (
                each[met] for each in (chosen, part, share, block, rank)
            )
            pattern, turn = self._pattern(block, patterns.size)
            if self._rotates(patterns.size):
                rank = (rank + patterns.before(pattern, part, turn)) % share
            slots = (patterns.slots(pattern, part, rank) - turn) % patterns.size
            positions[chosen] = (
                self.segments[index].start + block * patterns.size + slots
            )
        return positions

    def inverse(
        self, rows: Integers, epochs: Integers, window: tuple[int, int]
    ) -> Hits:
        # A part's draws are counted over all epochs, so counts at the window's ends tell which draws are in it.
        hits = []
        owner = np.searchsorted(self._below.row_ends, rows, side="right")
        known = (rows >= 0) & (owner < len(self.parts))
        for epoch in np.unique(epochs[known]).tolist():
            begin = self.begin(epoch)
            drawn = [self.counts(begin + end) for end in window]
            for index, asked in by_part(
                owner, np.flatnonzero(known & (epochs == epoch))
            ):
                part = self.parts[index]
                low = int(drawn[0][index])
                high = int(drawn[1][index])
                if low >= high:
                    continue
                passes = np.arange(low // part.size, (high - 1) // part.size + 1)
                question, inner = (
                    grid.ravel() for grid in np.meshgrid(asked, passes, indexing="ij")
                )
                # Several passes may all match; of an endless part, only the window can be searched.
                if len(passes) == 1:
                    within = (low % part.size, (high - 1) % part.size + 1)
                else:
                    within = (0, part.size)
                below = part.inverse(
                    rows[question] - self._below.first_rows[index], inner, within
                )
                draws = inner[below.asked] * part.size + below.positions
                met = np.flatnonzero((draws >= low) & (draws < high))
                positions = (
                    self.positions_of_draws(np.full(len(met), index), draws[met])
                    - begin
                )
                hits.append(Hits(question[below.asked[met]], positions))
        return join_hits(hits)

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:  # noqa: ARG002
        if verb == "statistics":
            raise ArgumentError(
                "statistics() after mix() would not know how often rows count; call it "
                "on concat() of the parts, where each row counts once"
            )
        if verb in ("split", "split_by"):
            part = "[0]"
        else:
            part = ""
        raise ArgumentError(
            f"{verb}() after mix() would break its proportions; call it before: "
            f"mix({{name: ds.{verb}(…){part}}}, …)"
        )

    @property
    def part_names(self) -> tuple[str, ...]:
        return self.names

    def describe(self) -> list[Any]:
        parts = [
            [name, rows, part.describe()]
            for name, rows, part in zip(
                self.names, self.rows, self.parts, strict=True
            )
        ]
        if self.stop == "never":
            version = _ENDLESS_VERSION
        else:
            version = _VERSION
        version = {2: _ROTATED_VERSION, EVEN: _EVEN_VERSION}.get(
            self.version, version
        )
        lengths = []
        if self.tokens is not None:
            version = _TOKENS_VERSION
            lengths = [[part.digest for part in self.tokens]]
        segments = [
            [segment.start, list(segment.weights)] for segment in self.segments
        ]
        return [["mix", parts, segments, self.seed, self.stop, version, *lengths]]

    def text(self) -> list[str]:
        if self.by_step:
            unit = "step"
        else:
            unit = "position"
        weights = ", ".join(
            ":".join(map(str, segment.weights))
            + f" from {unit} {segment.start:,} on" * bool(segment.start)
            for segment in self.segments
        )
        parts = parts_text(zip(self.names, self.parts, strict=True))
        if self.version == EVEN:
            version = ""
        else:
            version = f", version={self.version}"
        if self.tokens is not None:
            version = ", by='tokens'"
        return [
            f"mix(seed={self.seed}, stop={self.stop!r}{version}) {weights}: {parts}"
        ]

    @cached_property
    def _starts(self) -> Integers:
        return np.array([segment.start for segment in self.segments])

    @cached_property
    def _before(self) -> Integers:
        """Number of draws of each part before each segment, int64[segments, parts]."""
        before = np.zeros((len(self.segments), len(self.parts)), np.int64)
        if self.tokens is not None:
            for index, (segment, following) in enumerate(pairwise(self.segments)):
                turns = TokenTurns(self.tokens, segment.weights, before[index])
                before[index + 1] = turns.counts(following.start - segment.start)
            return before
        for first in range(0, len(before) - 1, _TOGETHER):
            last = min(first + _TOGETHER, len(before) - 1)
            before[first + 1 : last + 1] = self._counts(
                slice(first, last), self._starts[first + 1 : last + 1]
            )
        return np.cumsum(before, axis=0)

    def _turns(self, index: int) -> TokenTurns:
        """Turns by tokens in a segment."""
        assert self.tokens is not None
        turns = self._known_turns.get(index)
        if turns is None:
            weights = self.segments[index].weights
            turns = TokenTurns(self.tokens, weights, self._before[index])
            self._known_turns[index] = turns
        return turns

    @cached_property
    def _known_turns(self) -> dict[int, TokenTurns]:
        return {}

    def _counts(self, segments: slice, positions: Integers) -> Integers:
        """Number of draws of each part in each of some segments before a position, int64[segments, parts]."""
        weights = np.array([segment.weights for segment in self.segments[segments]])
        sizes = weights.sum(axis=1)
        blocks, begun = np.divmod(positions - self._starts[segments], sizes)
        pattern, turn = self._pattern(blocks, sizes)
        if self.version == EVEN:
            even = EvenPatterns(self.seed, weights)
            stop = turn + begun
            wraps = stop >= sizes
            counted = even.counts(
                pattern, np.where(wraps, stop - sizes, stop)
            ) - even.counts(pattern, turn)
            return (blocks + np.where(wraps, 1, 0))[:, None] * weights + counted
        # Of the last block, the fewer slots are looked at: those that are drawn, or those that are left.
        many = begun > sizes // 2
        first = np.where(many, turn + begun, turn)
        length = np.where(many, sizes - begun, begun)
        which = np.repeat(np.arange(len(sizes)), length)
        slots = np.arange(len(which)) + np.repeat(
            first - (np.cumsum(length) - length), length
        )
        if len(which):
            keys = seeds.derive(self.seed, "mix", *weights.T, pattern)
        else:
            keys = pattern
        drawn = (
            seeds.permute_by(slots % sizes[which], which, sizes, keys)
            + (np.cumsum(sizes) - sizes)[which]
        )
        # The slots of all parts of all segments, one after the other.
        cells = np.searchsorted(np.cumsum(weights), drawn, side="right")
        counted = np.bincount(cells, minlength=weights.size).reshape(weights.shape)
        return blocks[:, None] * weights + np.where(
            many[:, None], weights - counted, counted
        )

    def _pattern(self, block: Integers, size: Any) -> tuple[Integers, Integers]:
        """Pattern of each block of `size` slots, an int or int64[n], and the slot of it that the block begins with."""
        count = np.asarray(_count_of(size), np.uint64)
        pattern = (seeds.derive(self.seed, "pattern", block) % count).astype(np.int64)
        if self.version == 1:
            return pattern, np.zeros_like(pattern)
        turn = (
            seeds.derive(self.seed, "rotation", block) % np.asarray(size, np.uint64)
        ).astype(np.int64)
        if self.version == 2:
            return pattern, turn
        rotates = self._rotates(size)
        return np.where(rotates, pattern, block), np.where(rotates, turn, 0)

    def _rotates(self, size: Any) -> Any:
        """Whether blocks of `size` slots, an int or int64[n], rotate one of a few patterns.

        In version 3, larger blocks have a pattern each.
        """
        return self.version == 2 or (self.version == EVEN and size <= _MOST_LOOKED_UP)


def whole_weights(weights: Sequence[Fraction | int], most: int) -> tuple[int, ...]:
    """Weights of one block, not all zero, as integers without a common divisor.

    They are exact, unless their sum would be above `most`: then that is their sum, by largest remainders, and positive
    ones are at least 1.
    """
    scale = math.lcm(*(weight.denominator for weight in weights))
    whole = [weight.numerator * (scale // weight.denominator) for weight in weights]
    total = sum(whole)
    divisor = math.gcd(*whole)
    if total // divisor <= most:
        return tuple(weight // divisor for weight in whole)
    units = [max(weight * most // total, 1) if weight else 0 for weight in whole]
    missing = most - sum(units)
    by_remainder = sorted(
        range(len(whole)), key=lambda part: units[part] * total - whole[part] * most
    )
    for part in by_remainder[: max(missing, 0)]:
        units[part] += 1
    return tuple(units)


def scheduled_until(
    order: Order, epoch: int, position: int
) -> tuple[Order, list[Any]]:
    """A mixture without the weights that begin at a position of an epoch or later, and what determines the rest.

    The schedule at the first example of an epoch is not in the past, but it determines where the previous epoch ends.
    """
    assert isinstance(order, Mixed)
    past = order.until(epoch, position)
    depends: list[Any] = [past.segments]
    if epoch:
        depends.append(order.begin(epoch))
    return past, depends
