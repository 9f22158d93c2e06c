"""Turns by tokens: parts of a mixture take turns so that their tokens, not their rows, have the shares of the weights.

Each part has a clock that runs by `2 / weight` for each token, and a row is due when the clock shows the middle of its
tokens (the finish times of weighted fair queueing, Demers, Keshav and Shenker, 1989, in their middle as in the method
of Sainte-Laguë). Rows follow one another as they are due. So when the next row is due at time t, a part of weight w has
`w * t / 2` tokens, give or take half of one row of its own.

Rows before any time are counted by sums of the lengths of 64 rows each, which are made once for each epoch of a part.
The order of a few rows follows from their own lengths.
"""

from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from loadax.errors import ArgumentError
from loadax.protocols import Array, Integers, Order

# Lengths of rows of a source, int64[n].
Lengths = Callable[[Integers], Integers]

_CELL = 64  # rows whose lengths are summed
_CHUNK = 1 << 20  # rows that are looked at together
_KEPT_ROWS = 1 << 16  # of the epochs of a part whose sums are kept, at least three
_MOST_TOKENS = 1 << 61  # that are counted in int64
_SLACK = 2e-15  # relative error of a time, above that of a few roundings
_ROUNDS = 200  # until a time is found; halving floats takes half of that


@final
class PartTokens:
    """Tokens of a part of a mixture, by rows drawn: counted over all of its epochs.

    Args:
        name: Name of the part.
        order: Its order, which has the same rows in every epoch.
        lengths: Function of rows of its source: their lengths.
        digest: Digest of all lengths, which states depend on.
    """

    def __init__(
        self,
        name: str,
        order: Order,
        lengths: Lengths,
        digest: str,
    ):
        self._name = name
        self.digest = digest
        self._order = order
        self._lengths = lengths
        self._sums: dict[int, Integers] = {}
        self.size: int = order.size
        self.tokens = int(self._sums_of(0)[-1])
        if self.tokens < 1:
            raise ArgumentError(
                f"mix(by='tokens'): the rows of dataset {name!r} have no tokens; "
                "leave it out"
            )

    def __reduce__(self) -> tuple[type, tuple[str, Order, Lengths, str]]:
        return PartTokens, (self._name, self._order, self._lengths, self.digest)

    def lengths(self, draws: Integers) -> Integers:
        """Lengths of the rows of some draws."""
        epochs, positions = np.divmod(draws, self.size)
        return self._lengths(self._order.visits(epochs, positions).rows)

    def before(self, draw: int) -> int:
        """Tokens of all rows before a draw."""
        cell = draw % self.size // _CELL * _CELL
        first = draw - draw % self.size + cell
        rest = self.lengths(np.arange(first, draw, dtype=np.int64))
        return self._at_cell(first) + int(rest.sum())

    def cell_before(self, tokens: int) -> int:
        """The last first draw of a cell before which there are at most so many tokens."""
        epoch, rest = divmod(tokens, self.tokens)
        sums = self._sums_of(epoch)
        cell = int(np.searchsorted(sums, rest, side="right")) - 1
        return epoch * self.size + min(cell * _CELL, self.size)

    def _at_cell(self, first: int) -> int:
        epoch, position = divmod(first, self.size)
        return epoch * self.tokens + int(self._sums_of(epoch)[position // _CELL])

    def _sums_of(self, epoch: int) -> Integers:
        """Tokens before each cell of an epoch, and of the whole epoch, int64[cells + 1]."""
        sums = self._sums.get(epoch)
        if sums is None:
            sums = self._summed(epoch)
            most = max(3, _KEPT_ROWS // self.size)
            surplus = max(0, len(self._sums) - most + 1)
            for known in [*self._sums][:surplus]:
                self._sums.pop(known, None)
            self._sums[epoch] = sums
        return sums

    def _summed(self, epoch: int) -> Integers:
        sums = np.zeros(-(-self.size // _CELL) + 1, np.int64)
        for start in range(0, self.size, _CHUNK):
            stop = min(start + _CHUNK, self.size)
            positions = np.arange(start, stop, dtype=np.int64)
            rows = self._order.visits(np.full_like(positions, epoch), positions).rows
            firsts = np.arange(0, len(rows), _CELL)
            cells = np.add.reduceat(self._lengths(rows), firsts)
            low = start // _CELL + 1
            sums[low : low + len(cells)] = cells
        return np.cumsum(sums)


@final
class TokenTurns:
    """Turns of parts whose weights stay the same from some draws on.

    Args:
        parts: Tokens of all parts.
        weights: Their weights.
        begins: Number of draws of each part before the first turn, int64[parts].
    """

    def __init__(
        self,
        parts: Sequence[PartTokens],
        weights: Sequence[int],
        begins: Integers,
    ):
        self._parts = parts
        self._weights = weights
        self._begins: list[int] = begins.tolist()
        self._counted = begins
        self._drawn = [part for part, weight in enumerate(weights) if weight]
        self._tokens = {
            part: parts[part].before(self._begins[part]) for part in self._drawn
        }
        # turns in a unit of time, about
        self._rate = sum(
            weights[part] / 2 * parts[part].size / parts[part].tokens
            for part in self._drawn
        )

    def draws(self, turns: Integers) -> tuple[Integers, Integers]:
        """Part of each turn, and the number of earlier draws of that part; both int64[n]."""
        part = np.empty_like(turns)
        draws = np.empty_like(turns)
        order = np.argsort(turns, kind="stable")
        ascending = turns[order]
        # Turns that are far from each other are looked for by themselves.
        far = np.diff(ascending) > 2 * _CELL * len(self._drawn)
        for chosen in np.split(order, np.flatnonzero(far) + 1):
            if not len(chosen):
                continue
            low = int(turns[chosen[0]])
            stop = int(turns[chosen[-1]]) + 1
            first, parts, drawn = self._window(low, stop)
            place = turns[chosen] - first
            part[chosen] = parts[place]
            draws[chosen] = drawn[place]
        return part, draws

    def counts(self, turn: int) -> Integers:
        """Number of draws of each part before a turn, int64[parts]."""
        first, parts, drawn = self._window(turn, turn)
        counts = self._counted.copy()
        for part in self._drawn:
            met = drawn[parts == part]
            earlier = parts[: turn - first] == part
            if len(met):
                counts[part] = met[0] + np.count_nonzero(earlier)
        return counts

    def turns(self, parts: Integers, draws: Integers) -> Integers:
        """Turn of the `draws[i]`-th row (from 0) of part `parts[i]`; -1 if it is never drawn."""
        found = np.full(len(draws), -1, np.int64)
        for index, (part, draw) in enumerate(
            zip(parts.tolist(), draws.tolist(), strict=True)
        ):
            if part not in self._tokens or draw < self._begins[part]:
                continue
            times = self._due(part, np.array([draw]))
            due = float(times[0])
            found[index] = sum(
                self._earlier(other, due, part, draw) for other in self._drawn
            )
        return found

    def _earlier(
        self,
        other: int,
        due: float,
        part: int,
        draw: int,
    ) -> int:
        """Number of draws of a part before a draw of another part, which is due at some time."""
        if other == part:
            return draw - self._begins[part]
        low, high = self._cells(other, due)
        times = self._due(other, np.arange(low, high, dtype=np.int64))
        earlier = times < due
        if other < part:
            earlier = times <= due
        return low - self._begins[other] + int(np.count_nonzero(earlier))

    def _due(self, part: int, draws: Integers) -> Array:
        """Times at which consecutive draws of a part are due, ascending float64[n]."""
        if not len(draws):
            return np.empty(0)
        lengths = self._parts[part].lengths(draws)
        before = self._parts[part].before(int(draws[0])) - self._tokens[part]
        ends = np.cumsum(lengths)
        if before > _MOST_TOKENS:
            ends = ends.astype(object)
        middles = 2 * (before + ends) - lengths
        return middles.astype(np.float64) / self._weights[part]

    def _cells(self, part: int, time: float) -> tuple[int, int]:
        """Draws of a part: all below the first are due at a time or before, and all from the second on later."""
        tokens = time * self._weights[part] / 2
        begun = self._tokens[part]
        least = int(tokens * (1 - _SLACK)) - 1
        most = begun + int(tokens * (1 + _SLACK)) + 1
        table = self._parts[part]
        low = self._begins[part]
        if least >= 0:
            low = max(low, table.cell_before(begun + least))
        return low, max(low, table.cell_before(most) + _CELL)

    def _bounds(self, time: float) -> tuple[int, int]:
        """At least and at most the number of turns that are due at a time or before."""
        cells = [self._cells(part, time) for part in self._drawn]
        begins = sum(self._begins[part] for part in self._drawn)
        low = sum(low for low, _ in cells) - begins
        return low, sum(high for _, high in cells) - begins

    def _window(self, low: int, stop: int) -> tuple[int, Integers, Integers]:
        """Consecutive turns, among them those from `low` to `stop`: the first one, and parts and draws of all.

        At least one draw of each part that is drawn is in it.
        """
        after = self._time_after(stop)
        before = self._time_before(low)
        first = 0
        parts = []
        draws = []
        times = []
        for part in self._drawn:
            begin = self._cells(part, before)[0]
            drawn = np.arange(begin, self._cells(part, after)[1] + 1, dtype=np.int64)
            first += begin - self._begins[part]
            draws.append(drawn)
            times.append(self._due(part, drawn))
            parts.append(np.full_like(drawn, part))
        # Draws of a part are ascending in time, and a stable sort leaves equal times in the order of parts.
        order = np.argsort(np.concatenate(times), kind="stable")
        return first, np.concatenate(parts)[order], np.concatenate(draws)[order]

    def _time_after(self, turn: int) -> float:
        """A time at which all turns before this one are due, and few later ones."""
        return self._times(lambda time: self._bounds(time)[0] - turn, turn)[1]

    def _time_before(self, turn: int) -> float:
        """A time at which no turn from this one on is due, and few earlier ones are not; 0 near the first turn."""
        earlier = turn - 2 * _CELL * len(self._drawn)
        if earlier <= 0:
            return 0.0
        return self._times(lambda time: self._bounds(time)[1] - earlier, earlier)[0]

    def _times(
        self, excess: Callable[[float], int], turn: int
    ) -> tuple[float, float]:
        """Times around that where the excess of turns, which grows by `_rate`, changes its sign.

        One time twice, where the excess is at least 0 and small.
        """
        low = 0.0
        high = float("inf")
        time = max(turn, 1) / self._rate
        enough = _CELL * len(self._drawn)
        for _ in range(_ROUNDS):
            over = excess(time)
            if 0 <= over <= enough:
                return time, time
            if over < 0:
                low = time
            else:
                high = time
            time -= (over - enough / 2) / self._rate
            if not low < time < high:
                if high == float("inf"):
                    time = 2 * low + 1
                else:
                    time = (low + high) / 2
            if not low < time < high:
                break
        return low, high
