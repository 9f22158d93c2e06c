"""ShuffledLanes: the rows of every lane of a stream through a buffer, in an order that is a function of numbers alone.

A buffer of n rows is filled first. Every turn then yields the row of one slot, into which the next row of the lane is
read. n turns are a round, in which every slot has one turn, by a permutation of the seed, the lane, its epoch and the
round. So a row waits n turns on average, and less than 2 n, and the rows of the buffer at any turn follow from the
turn: a state is the turn, and a state of the lane before the oldest of these rows.

Rows of one round come out in the next one, in any order. Turns are counted from a random number below n, so that the
rounds of lanes, and of epochs, begin at different rows.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np

from loadax.core.arguments import integer, refuse_given
from loadax.errors import ArgumentError
from loadax.protocols import Integers, Tree
from loadax.seeds import derive, permute
from loadax.sources.base import BaseSource
from loadax.sources.stream.lane import open_rows, state_methods
from loadax.sources.stream.source import StreamSource

# Version of this order, in saved states.
VERSION = 1

_MOST_ROWS = 1 << 24  # of a buffer
# whose slots are computed at once, at least; the lane's state is taken as often
_TURNS = 1024

_EMPTY: Any = object()  # an empty slot


def shuffled_stream(
    source: BaseSource, seed: int, buffer_size: int | None, **others: Any
) -> tuple[StreamSource, str, list[Any]]:
    """A stream with its lanes shuffled; also the verb as text, and everything that determines its rows, as JSON.

    Args:
        source: The stream.
        seed: Seed of the order.
        buffer_size: Rows of the buffer of each lane.
        others: Arguments of `Dataset.shuffle` that are not for streams; None if left out.

    Raises:
        ArgumentError: If an argument is not for streams, or there is no buffer size.
    """
    refuse_given(
        "a dataset with random access; the rows of a stream are shuffled in a buffer",
        **others,
    )
    if buffer_size is None:
        raise ArgumentError(
            "shuffle() of a stream needs buffer_size=, the number of rows that each "
            f"lane keeps to choose from: data.shuffle(seed={seed}, buffer_size=1000)"
        )
    size = integer("buffer_size", buffer_size, 1, _MOST_ROWS)
    assert isinstance(source, StreamSource)
    rows = source.of_rows()
    lanes = ShuffledLanes(rows, seed, size)
    stream = StreamSource(
        lanes, rows.lanes, rows.spec, rows.origin, rows.traits, first=rows
    )
    return (
        stream,
        f"shuffle({seed}, buffer_size={size})",
        ["shuffle", VERSION, seed, size],
    )


@final
class ShuffledLanes:
    """Opens lanes whose rows are shuffled.

    Args:
        stream: Stream of rows.
        seed: Seed of the order.
        size: Rows of the buffer of each lane.
    """

    def __init__(self, stream: StreamSource, seed: int, size: int):
        self._stream = stream
        self._seed = seed
        self._size = size

    def __call__(self, lane: int, lanes: int, epoch: int) -> Iterator[Tree]:
        rows = open_rows(self._stream.open_again, lane, lanes, epoch)
        key = derive(self._seed, "stream", epoch, lane)
        shuffled = ShuffledLane(rows, self._size, key)
        # a generator has no states
        if state_methods(rows) is None:
            return (row for row in shuffled)
        return shuffled


@final
class ShuffledLane(Iterator[Tree]):
    """Shuffled rows of one lane in one epoch. A resume reads two buffers and 1,024 rows again, or three at the begin.

    Args:
        rows: Rows of the lane.
        size: Rows of the buffer.
        key: Key of the permutations.
    """

    def __init__(self, rows: Iterator[Any], size: int, key: int):
        self._rows = rows
        self._size = size
        self._key = key
        self._methods = state_methods(rows)
        self._rounds = max(1, _TURNS // size)  # whose slots are computed at once
        self._slots: list[int] = []  # of the next turns, the last one first
        self._buffer: list[Tree] = []
        self._first_turn = derive(key, "first turn") % size
        self._turn = self._first_turn  # the next one
        self._filled = 0  # rows in the buffer
        self._ended = False
        # Numbers of rows, and the states of the lane before them. The first one has no state: the epoch begins there.
        self._bases: list[tuple[int, Any]] = [(0, None)]

    def __next__(self) -> Tree:
        if not self._buffer:
            self._buffer = [self._read() for _ in range(self._size)]
            self._filled = sum(row is not _EMPTY for row in self._buffer)
        while self._filled:
            if not self._slots:
                self._add_base()
                self._slots = self._next_slots()
            read = self._read()
            slot = self._slots.pop()
            row = self._buffer[slot]
            self._buffer[slot] = read
            self._turn += 1
            if row is not _EMPTY:
                if read is _EMPTY:
                    self._filled -= 1
                return row
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        self._drop_bases()
        return {"turn": self._turn, "base": list(self._bases[0])}

    def set_state(self, state: Mapping[str, Any]) -> None:
        assert self._methods is not None
        self._turn = state["turn"]
        first, own = state["base"]
        self._bases = [(first, own)]
        if own is not None:
            self._methods[1](own)
        slots = {row: slot for slot, row in enumerate(self._rows_of_slots().tolist())}
        self._buffer = [_EMPTY] * self._size
        for number in range(first, self._next_row()):
            row = self._read()
            if number in slots:
                self._buffer[slots[number]] = row
        self._filled = sum(row is not _EMPTY for row in self._buffer)
        self._slots = []

    def _read(self) -> Tree:
        """The next row of the lane; `_EMPTY` after its end."""
        if self._ended:
            row = _EMPTY
        else:
            row = next(self._rows, _EMPTY)
        self._ended = row is _EMPTY
        return row

    def _add_base(self) -> None:
        """Takes the lane's state before the row that is read next."""
        if self._methods is None or self._ended:
            return
        own = self._methods[0]()
        if own is not None:
            self._drop_bases()
            # the lane may change it
            self._bases.append((self._next_row(), copy.deepcopy(own)))

    def _drop_bases(self) -> None:
        """Drops states before the latest one that is not after the oldest row of the buffer."""
        # Rows of the round before, or rows that were read before the first turn.
        number = self._turn // self._size
        if number > 1:
            oldest = number * self._size - self._first_turn
        else:
            oldest = 0
        while len(self._bases) > 1 and self._bases[1][0] <= oldest:
            del self._bases[0]

    def _next_slots(self) -> list[int]:
        """Slots of the turns up to the next one whose slots are computed, the last one first."""
        first, turn = divmod(self._turn, self._rounds * self._size)
        slots = self._permutations(first * self._rounds, self._rounds).reshape(-1)
        return slots[turn:][::-1].tolist()

    def _permutations(self, first: int, count: int) -> Integers:
        """Slots of the turns of rounds, int64[count, size]."""
        keys = derive(self._key, np.arange(first, first + count))
        return permute(np.arange(self._size), self._size, keys[:, None])

    def _next_row(self) -> int:
        """Number of the row that is read in the next turn."""
        return self._size + self._turn - self._first_turn

    def _rows_of_round(self, number: int) -> Integers:
        """Number of the row that is read in each turn of a round, int64[size]."""
        return np.arange(self._size) + (number + 1) * self._size - self._first_turn

    def _rows_of_slots(self) -> Integers:
        """Number of the row in each slot, int64[size], if the lane has it."""
        number, turns = divmod(self._turn, self._size)
        rows = np.arange(self._size)  # before the first turn
        for round_number, count in ((number - 1, self._size), (number, turns)):
            if round_number == 0:
                begin = self._first_turn
            else:
                begin = 0
            if round_number >= 0:
                slots = self._permutations(round_number, 1)[0]
                rows[slots[begin:count]] = self._rows_of_round(round_number)[
                    begin:count
                ]
        return rows
