"""Streams for tests: lanes whose rows are known, and what batches of them must be."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from loadax.plan.lanes import lane_places


def row_of(lane: int, row: int) -> int:
    """A number that tells lane and row."""
    return lane * 1000 + row


class CountedLanes:
    """Opens lanes of given lengths, and counts what is opened and read.

    Args:
        lengths: Rows of each lane. None: endless lanes.
        stateful: Whether the lanes have `get_state` and `set_state`.
    """

    def __init__(self, lengths: Sequence[int] | None = None, stateful: bool = False):
        self.lengths, self.stateful = lengths, stateful
        self.opened: list[int] = []
        self.rows_read = 0

    def __call__(self, lane: int, lanes: int) -> Iterator[Any]:
        assert self.lengths is None or lanes == len(self.lengths)
        self.opened.append(lane)
        return StatefulLane(self, lane) if self.stateful else self.rows(lane, 0)

    def rows(self, lane: int, begin: int) -> Iterator[Any]:
        for row in count(begin) if self.lengths is None else range(begin, self.lengths[lane]):
            self.rows_read += 1
            yield {"x": np.int32(row_of(lane, row))}


class StatefulLane:
    def __init__(self, given: CountedLanes, lane: int):
        self._given, self._lane, self._row = given, lane, 0
        self._rows: Iterator[Any] | None = None

    def __iter__(self) -> "StatefulLane":
        return self

    def __next__(self) -> Any:
        if self._rows is None:
            self._rows = self._given.rows(self._lane, self._row)
        example = next(self._rows)
        self._row += 1
        return example

    def get_state(self) -> dict[str, int]:
        return {"row": self._row}

    def set_state(self, state: dict[str, int]) -> None:
        assert self._rows is None
        self._row = state["row"]


def expected_steps(lengths: Sequence[int], batch_size: int, remainder: str) -> list[list[int]]:
    """Rows of every batch, -1 for padding, computed row by row."""
    lanes = len(lengths)
    place = lane_places(lanes).tolist()
    steps: list[list[int]] = []
    for begin in count(0, batch_size):
        batch = []
        for position in range(begin, begin + batch_size):
            row, lane = divmod(position, lanes)
            batch.append((place[lane], row_of(lane, row) if row < lengths[lane] else -1))
        values = [value for _, value in sorted(batch, key=lambda entry: entry[0])]
        if (-1 in values) if remainder == "drop" else all(value == -1 for value in values):
            return steps
        steps.append(values)
    raise AssertionError
