"""Lane: one iterator of a stream, read in order, and the states from which another process can continue it."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.arguments import shown
from loadax.core.tree import flatten
from loadax.core.user_object import RAISED, blame
from loadax.errors import ArgumentError, LeafError, SourceError, StateError
from loadax.protocols import Array, Tree
from loadax.sources.stream.blocks import BlockPart, BlockSpec

# Opens an iterable over the rows of a lane. Arguments: lane, number of lanes, epoch.
OpenLane = Callable[[int, int, int], Any]

# Share of a run's time that asking all lanes for their states may take. Resuming repeats the rows since the latest one.
STATE_SHARE = 0.05

# Stands for the end of an iterator.
_NO_BLOCK = object()

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
        start: Where to begin.
        blocks: Spec of the blocks of rows that the lane yields. None: it yields rows.
        call: The call that takes the number of lanes, for messages; see `Origin`.
    """

    def __init__(
        self,
        open_lane: OpenLane,
        number: int,
        lanes: int,
        epochs: int | None,
        start: LaneState,
        blocks: BlockSpec | None = None,
        call: str = "",
    ):
        self._open_lane = open_lane
        self._call = call
        self.number = number
        self._name = f"lane {number}"
        self._lanes = lanes
        self._epochs = epochs
        self._blocks = blocks
        # Next row, counted over all epochs.
        self.row = start.row
        # Ticket of the piece that may read the lane.
        self.serving = 0
        self._next_ticket = 0
        self._epoch = start.epoch
        self._first = start.first
        self._iterator: Iterator[Any] | None = None
        self._methods: tuple[Callable[[], Any], Callable[[Any], Any]] | None = None
        # Rows of the latest block that were not taken yet. None: there are none.
        self._rest: BlockPart | None = None
        # Rows of the latest block.
        self.block_rows = 0
        # Leaves of the first block, and copies of their first rows.
        self._first_block: tuple[Sequence[Array], list[Array]] | None = None
        # Whether a row was looked at again after the next one was read: lanes must not change rows that they yielded.
        # Only within one read: later, the row belongs to the maps, which may change it.
        self._checked = False
        # States that were taken, in order. Those that no consumer can ask for any more are dropped.
        self.states = [start]
        # Whether there are no states to take or to drop.
        self.stateless = True
        self._state_due = 0.0
        self.ended = epochs is not None and start.epoch >= epochs

    def read(self, row: int, count: int, items: list[Tree]) -> None:
        """Appends `count` rows from `row` on to `items`; fewer if the lane ends. Skips earlier rows.

        Args:
            row: First row.
            count: Number of rows.
            items: Examples, which are not checked, or parts of blocks, which are.

        Raises:
            SourceError: If an epoch of the lane has no rows.
            Exception: Whatever the lane raises, with a note that names lane and row.
        """
        while self.row < row and not self.ended:
            # Not all at once: skipped rows need no memory.
            self.read(self.row, min(row - self.row, 256), [])
        while count and not self.ended:
            if self._iterator is None:
                self._open(self.states[-1])
            if self._blocks is None:
                got = self._next_rows(items, count)
            elif part := self._next_part(count):
                items.append(part)
                got = part.end - part.begin
            else:
                got = 0
            self.row += got
            count -= got
            if count and not got:
                self._end_epoch()

    def part(self, row: int, most: int) -> BlockPart | None:
        """Reads rows from `row` on, as many as one block has, at most `most`. None: the lane has ended.

        Raises as `read`.
        """
        self.read(row, 0, [])
        while not self.ended:
            if self._iterator is None:
                self._open(self.states[-1])
            part = self._next_part(most)
            if part is not None:
                self.row += part.end - part.begin
                return part
            self._end_epoch()
        return None

    def next_part(self, row: int, count: int) -> BlockPart | None:
        """Reads `count` rows from `row` on, if the present block has them all. None: it does not, so `read` must.

        Most parts of blocks of many rows are read here.
        """
        rest = self._rest
        if rest is None or self.row != row:
            return None
        leaves, begin, end = rest
        middle = begin + count
        if middle > end:
            return None
        self.row = row + count
        if middle == end:
            self._rest = None
        else:
            self._rest = BlockPart(leaves, middle, end)
        return BlockPart(leaves, begin, middle)

    @property
    def rows_at_hand(self) -> int:
        """Rows of the present block that were not read yet."""
        if self._rest is None:
            return 0
        return self._rest.end - self._rest.begin

    def take_ticket(self) -> int:
        """Ticket of the next piece that reads the lane. Not thread-safe."""
        self._next_ticket += 1
        return self._next_ticket - 1

    def take_state(self, oldest: int) -> None:
        """Adds a state to `states` if the lane offers one and it is cheap, and drops those before that of `oldest`.

        Args:
            oldest: Earliest row that the consumer may continue at.
        """
        if self._methods is not None and perf_counter() < self._state_due:
            return
        if len(self.states) > 1:
            oldest = max(oldest, self.states[0].row)
            del self.states[
                : max(
                    index
                    for index, state in enumerate(self.states)
                    if state.row <= oldest
                )
            ]
        self.stateless = self._methods is None and len(self.states) == 1
        if self._blocks is None:
            self._add_state()

    def _add_state(self) -> None:
        """Adds the iterator's state to `states` if it offers one and it is cheap."""
        if self._methods is None or perf_counter() < self._state_due:
            return
        began = perf_counter()
        state = self._own_state(self._methods[0])
        if state is not None:  # which would stand for the first row of the epoch
            self.states.append(LaneState(self.row, self._epoch, self._first, state))
        ended = perf_counter()
        self._state_due = ended + self._lanes * (ended - began) / STATE_SHARE

    def close(self) -> None:
        """Drops the iterator, which may have files open. States remain."""
        self.ended = True
        self._iterator = self._methods = self._rest = self._first_block = None

    def state_at(self, row: int) -> LaneState:
        """The latest state before `row`."""
        states = self.states
        if len(states) == 1:
            return states[0]
        return [state for state in states.copy() if state.row <= row][-1]

    def _next_rows(self, rows: list[Tree], count: int) -> int:
        """Appends up to `count` rows, and returns their number; 0 at the end of the epoch."""
        assert self._iterator is not None
        before = len(rows)
        try:
            if self._checked or count == 1:
                sampled = []
            else:
                sampled = list(islice(self._iterator, 1))
            leaves = [leaf for row in sampled for leaf in flatten(row)[0]]
            copies = [
                leaf.copy() if isinstance(leaf, np.ndarray) else leaf
                for leaf in leaves
            ]
            rows.extend(sampled)
            rows.extend(islice(self._iterator, count - len(sampled)))
        except RAISED as error:
            blame(
                error,
                "a lane",
                f"loadax: reading row {self.row + len(rows) - before} of "
                f"{self._name}",
            )
            raise
        if sampled and len(rows) > before + 1:
            self._check_unchanged(rows[before], copies)
            self._checked = True
        return len(rows) - before

    def _next_part(self, count: int) -> BlockPart | None:
        """Up to `count` rows of one block; None at the end of the epoch."""
        block = self._rest or self._next_block()
        if block is None:
            return None
        leaves, begin, end = block
        if end - begin <= count:
            self._rest = None
            return block
        self._rest = BlockPart(leaves, begin + count, end)
        return BlockPart(leaves, begin, begin + count)

    def _next_block(self) -> BlockPart | None:
        """The next block that has rows. None: the epoch ends."""
        assert self._iterator is not None
        assert self._blocks is not None
        if self._methods is not None:
            self._add_state()  # blocks begin at the states
        leaves: Sequence[Array] = ()
        while not leaves or not len(leaves[0]):
            try:
                block = next(self._iterator, _NO_BLOCK)
            except RAISED as error:
                blame(
                    error, "a lane", f"loadax: reading row {self.row} of {self._name}"
                )
                raise
            if block is _NO_BLOCK:
                return None
            leaves = self._blocks.plain_leaves(block) or self._blocks.leaves(
                block, f"{self._name}, block at row {self.row}"
            )
        if self._first_block is not None:
            first, copies = self._first_block
            self._check_unchanged([leaf[:1] for leaf in first], copies)
            self._first_block = None
            self._checked = True
        elif not self._checked:
            self._first_block = leaves, [leaf[:1].copy() for leaf in leaves]
        self.block_rows = len(leaves[0])
        return BlockPart(leaves, 0, self.block_rows)

    def _check_unchanged(self, row: Tree, copies: list[Any]) -> None:
        """Checks that a row still is what it was when the lane yielded it."""
        leaves = flatten(row)[0]
        if len(leaves) != len(copies) or any(map(_differ, leaves, copies)):
            what = f"{self._name} changed row {self.row} after it had yielded it"
            raise LeafError(
                f"{what}, so rows overwrite each other; yield new arrays for each "
                "row (a copy)"
            )

    def _open(self, state: LaneState) -> None:
        """Opens the present epoch, at `state` if it is of this epoch, else at its first row."""
        self._iterator = open_rows(
            self._open_lane, self.number, self._lanes, self._epoch
        )
        self._methods = state_methods(self._iterator)
        self.stateless = self._methods is None and len(self.states) == 1
        if state.epoch == self._epoch and state.state is not None:
            if self._methods is None:
                raise StateError(
                    f"the state of {self._name} needs set_state(), which "
                    f"{type(self._iterator).__name__} lacks; open it as in the saved "
                    "run, or repeat all rows before its step: "
                    "loader.iterate(start=state['step'])"
                )
            try:
                self._methods[1](state.state)
            except RAISED as error:
                blame(
                    error,
                    "a lane",
                    f"loadax: setting the state of {self._name} at row {state.row}",
                )
                raise

    def _end_epoch(self) -> None:
        if self.row == self._first:
            raise no_rows(self._name, self._lanes, self._call, self._epoch)
        self._iterator = self._methods = None
        self._epoch = self._epoch + 1
        self._first = self.row
        self.ended = self._epoch == self._epochs
        self.states.append(LaneState(self.row, self._epoch, self.row))
        self.stateless = False

    def _own_state(self, get: Callable[[], Any]) -> Any:
        try:
            state = get()
        except RAISED as error:
            blame(
                error,
                "a lane",
                f"loadax: getting the state of {self._name} at row {self.row}",
            )
            raise
        try:
            # a copy, which the lane does not change as it goes on
            return json_copy(state)
        except (TypeError, ValueError, RecursionError) as error:
            raise StateError(
                f"{self._name}: the state of {type(self._iterator).__name__} is not "
                f"JSON ({error}): {shown(state)}; return numbers, strings, lists and "
                "dicts with str keys, or yield rows from a generator"
            ) from error


def open_rows(
    open_lane: OpenLane, number: int, lanes: int, epoch: int
) -> Iterator[Any]:
    """Opens a lane for an epoch.

    Raises:
        SourceError: If what `open_lane` returns can't be iterated over.
        Exception: Whatever `open_lane` raises, with a note that names the lane.
    """
    try:
        rows = open_lane(number, lanes, epoch)
        if not hasattr(rows, "__iter__") and not hasattr(rows, "__getitem__"):
            what = f"lane {number} of {lanes}: open_lane returned {shown(rows)}"
            raise SourceError(
                f"{what}; yield rows in it, or return an iterable of rows"
            )
        return iter(rows)
    except RAISED as error:
        blame(error, "open_lane", f"loadax: opening lane {number} of {lanes}")
        raise


def no_rows(lane: str, lanes: int, call: str, epoch: int = 0) -> SourceError:
    """The error for a lane without rows; `call` takes the number of lanes."""
    if epoch:
        within = f" in epoch {epoch}"
    else:
        within = ""
    if lanes == 1 or not call:
        return SourceError(
            f"the stream has no rows{within}; check what it is made of, as its "
            "filters"
        )
    return SourceError(
        f"{lane} of {lanes} has no rows{within}; pass fewer lanes, each of which has "
        f"rows: {call}"
    )


def rows_are_batches(verb: str) -> ArgumentError:
    """The error for a stream whose rows are the batches of a verb."""
    return ArgumentError(
        f"the rows of the stream are batches, of its {verb}; pass the stream before "
        "it, and batch_size= to the Dataloader"
    )


def _differ(leaf: Any, copy: Any) -> bool:
    if not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject:
        return False
    return (
        not isinstance(copy, np.ndarray)
        or leaf.shape != copy.shape
        or leaf.tobytes() != copy.tobytes()
    )


def state_methods(
    iterator: Any,
) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Functions that give an iterator's state and set it; None: it has no state."""
    for get, restore in _METHODS:
        if hasattr(iterator, get) and hasattr(iterator, restore):
            return getattr(iterator, get), getattr(iterator, restore)
    return None


def json_copy(value: Any) -> Any:
    """The same as `json.loads(json.dumps(value))`, in a sixth of the time for what states mostly are.

    Raises:
        TypeError, ValueError, RecursionError: When the value is not JSON.
    """
    kind = type(value)
    if kind is int or kind is str or kind is bool or value is None:
        return value
    if kind is list or kind is tuple:
        return [json_copy(each) for each in value]
    if kind is dict and {*map(type, value)} <= {str}:
        return {key: json_copy(each) for key, each in value.items()}
    return json.loads(json.dumps(value))
