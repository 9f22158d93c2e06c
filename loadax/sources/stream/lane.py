"""Lane: one iterator of a stream, read in order, and the states from which another process can continue it."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import shown
from loadax.core.blame import RAISED, blame
from loadax.core.spec import check_batch, flatten_spec
from loadax.core.tree import flatten
from loadax.errors import LeafError, SourceError, StateError
from loadax.protocols import Tree

OpenLane = Callable[[int, int, int], Any]
"""Opens an iterable over the rows of a lane. Arguments: lane, number of lanes, epoch."""

# Share of a lane's time that asking it for its state may take. Resuming repeats the rows since the latest state.
_STATE_SHARE = 0.05

_END = object()

_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class LaneState(NamedTuple):
    """A point of a lane from which it can be continued.

    Args:
        row: Number of rows before it, over all epochs.
        epoch: Number of times that the lane was opened before this epoch.
        first: First row of that epoch.
        state: State of the lane's own iterator, as JSON. None: the epoch begins here.
    """

    row: int
    epoch: int
    first: int
    state: Any = None


BEGIN = LaneState(0, 0, 0)


@final
class Lane:
    """Reads the rows of one lane in order. Opens it again at its end, for the next epoch.

    Args:
        open_lane: Opens the lane.
        number: Number of the lane.
        lanes: Number of lanes.
        epochs: Number of times that the lane is opened. None: endless.
        spec: Spec of a row, if the lane yields blocks of rows. None: it yields rows.
        start: Where to begin.
    """

    def __init__(
        self, open_lane: OpenLane, number: int, lanes: int, epochs: int | None, spec: Tree | None, start: LaneState
    ):
        self._open_lane = open_lane
        self._number, self._lanes, self._epochs, self._spec = number, lanes, epochs, spec
        self.row = start.row
        """Next row, counted over all epochs."""
        self._epoch, self._first = start.epoch, start.first
        self._iterator: Iterator[Any] | None = None
        self._methods: tuple[Callable[[], Any], Callable[[Any], Any]] | None = None
        # Leaves of a block, its length, and the rows taken from it.
        self._block: tuple[list[NDArray[Any]], int, int] | None = None
        specs, structure = ([], None) if spec is None else flatten_spec(spec)
        self._plain = [] if structure is None or not structure.flat else list(zip(structure.keys, specs, strict=True))
        self.states = [start]
        """States that were taken, in order. Those that no consumer can ask for any more are dropped."""
        self._state_due = 0.0
        self.ended = epochs is not None and start.epoch >= epochs

    def read(self, row: int, count: int) -> list[Tree]:
        """Reads `count` rows from `row` on; fewer if the lane ends. Skips earlier rows.

        Returns:
            Examples, or lists of the leaves of blocks.

        Raises:
            SourceError: If an epoch of the lane has no rows.
            Exception: Whatever the lane raises, with a note that names lane and row.
        """
        while self.row < row and not self.ended:
            # Not all at once: skipped rows need no memory.
            self._pull(min(row - self.row, 256))
        return self._pull(count)

    def take_state(self, oldest: int) -> None:
        """Adds a state to `states` if the lane offers one and it is cheap, and drops those before that of `oldest`.

        Args:
            oldest: Earliest row that the consumer may continue at.
        """
        if len(self.states) > 1:
            self._drop(oldest)
        if self._methods is None or self._block is not None or perf_counter() < self._state_due:
            return
        began = perf_counter()
        self.states.append(LaneState(self.row, self._epoch, self._first, self._own_state(self._methods[0])))
        ended = perf_counter()
        self._state_due = ended + (ended - began) / _STATE_SHARE

    def state_at(self, row: int) -> LaneState:
        """The latest state before `row`."""
        return next(state for state in reversed(list(self.states)) if state.row <= row)

    def _drop(self, oldest: int) -> None:
        latest = max(index for index, state in enumerate(self.states) if state.row <= max(oldest, self.states[0].row))
        del self.states[:latest]

    def _pull(self, count: int) -> list[Tree]:
        rows: list[Tree] = []
        while count and not self.ended:
            if self._iterator is None:
                self._open(self.states[-1])
            got = self._next_rows(rows, count) if self._spec is None else self._next_block(rows, count)
            self.row += got
            count -= got
            if count and not got:
                self._end_epoch()
        return rows

    def _next_rows(self, rows: list[Tree], count: int) -> int:
        """Appends up to `count` rows, and returns their number; 0 at the end of the epoch."""
        assert self._iterator is not None
        before = len(rows)
        try:
            rows.extend(islice(self._iterator, count))
        except RAISED as error:
            self._blame(error, self.row + len(rows) - before)
            raise
        return len(rows) - before

    def _next_block(self, rows: list[Tree], count: int) -> int:
        """Like `_next_rows`, from blocks of rows: appends one part of a block."""
        assert self._iterator is not None
        while self._block is None:
            try:
                block = next(self._iterator, _END)
            except RAISED as error:
                self._blame(error, self.row)
                raise
            if block is _END:
                return 0
            leaves = self._plain_leaves(block)
            if leaves is None:
                checked = check_batch(block, self._length(block), self._spec, f"{self._name}, block at row {self.row},")
                leaves = flatten(checked)[0]
            if len(leaves[0]):
                self._block = leaves, len(leaves[0]), 0
        leaves, length, begin = self._block
        end = min(length, begin + count)
        rows.append([leaf[begin:end] for leaf in leaves] if end - begin < length else leaves)
        self._block = (leaves, length, end) if end < length else None
        return end - begin

    def _plain_leaves(self, block: Any) -> list[NDArray[Any]] | None:
        """Leaves of a block on a fast path: of a dict of arrays as specified. None if it must be checked."""
        if type(block) is not dict or len(block) != len(self._plain):
            return None
        leaves = []
        for key, (shape, dtype) in self._plain:
            leaf = block.get(key)
            if type(leaf) is not np.ndarray or leaf.dtype != dtype or not leaf.ndim or leaf.shape[1:] != shape:
                return None
            leaves.append(leaf)
        return leaves if {*map(len, leaves)} == {len(leaves[0])} else None

    def _length(self, block: Any) -> int:
        leaves = flatten(block)[0]
        if not leaves or any(not hasattr(leaf, "shape") or not leaf.shape for leaf in leaves):
            raise LeafError(
                f"{self._name}, block at row {self.row}: batched=True, so each item must be a tree of arrays with rows "
                f"as first dimension, and this is {shown(block)}; yield such blocks, or leave out batched=True"
            )
        return len(leaves[0])

    def _open(self, state: LaneState) -> None:
        """Opens the present epoch, at `state` if it is of this epoch, else at its first row."""
        try:
            given = self._open_lane(self._number, self._lanes, self._epoch)
            self._iterator = iter(given)
        except RAISED as error:
            blame(
                error, "open_lane", f"loadax: opening {self._name} of {self._lanes}, which must be an iterable of rows"
            )
            raise
        self._methods = _state_methods(self._iterator)
        if state.epoch == self._epoch and state.state is not None:
            if self._methods is None:
                raise StateError(
                    f"the state of {self._name} was saved by an iterator with get_state() or state_dict(), and "
                    f"{type(self._iterator).__name__} has none; open it as in the saved run, or start from its step "
                    "alone, which repeats all rows before: loader.iterate(start=state['step'])"
                )
            try:
                self._methods[1](state.state)
            except RAISED as error:
                blame(error, "a lane", f"loadax: setting the state of {self._name} at row {state.row}")
                raise

    def _end_epoch(self) -> None:
        if self.row == self._first:
            raise SourceError(
                f"{self._name} of {self._lanes} has no rows" + f" in epoch {self._epoch}" * bool(self._epoch) + "; "
                "pass a number of lanes= that each have rows, such as the number of files"
            )
        self._iterator = self._methods = None
        self._epoch, self._first = self._epoch + 1, self.row
        self.ended = self._epoch == self._epochs
        self.states.append(LaneState(self.row, self._epoch, self.row))

    def _own_state(self, get: Callable[[], Any]) -> Any:
        try:
            state = get()
        except RAISED as error:
            blame(error, "a lane", f"loadax: getting the state of {self._name} at row {self.row}")
            raise
        try:
            return json.loads(json.dumps(state))  # a copy, which the lane does not change as it goes on
        except (TypeError, ValueError) as error:
            raise StateError(
                f"{self._name}: the state of {type(self._iterator).__name__} is not JSON ({error}): {shown(state)}; "
                "return numbers, strings, lists and dicts with str keys, or yield rows from a generator, which is "
                "repeated to resume"
            ) from error

    def _blame(self, error: BaseException, row: int) -> None:
        blame(error, "a lane", f"loadax: reading row {row} of {self._name}")

    @property
    def _name(self) -> str:
        return f"lane {self._number}"


def _state_methods(iterator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    for get, restore in _METHODS:
        if hasattr(iterator, get) and hasattr(iterator, restore):
            return getattr(iterator, get), getattr(iterator, restore)
    return None
