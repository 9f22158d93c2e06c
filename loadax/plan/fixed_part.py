"""Parts of a shuffled order whose rows are the same in every epoch.

A slice of a shuffle has positions, and every epoch has other rows at them: two slices would exchange their rows, and a
validation set would be trained on. So a part has the rows that are at its positions in epoch 0, in this order in epoch
0, and in an order of its own in each later one. All of it is arithmetic: no list of rows is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from loadax import seeds
from loadax.errors import ArgumentError
from loadax.plan.groups.shuffled import GroupsShuffled
from loadax.plan.order import VerbOrder, check_fixed_rows, depth_first
from loadax.plan.sample import Sampled
from loadax.plan.select import Selected
from loadax.plan.shuffle import ShuffleOrder
from loadax.plan.slice import Sliced
from loadax.protocols import Hits, Integers, Order, Shuffle, Visits

_FIRST_EPOCH = "first epoch"
_REORDERED = "reorder"


@final
@dataclass(frozen=True)
class FirstEpoch(VerbOrder):
    """The rows of the parent's epoch 0, in this order in every epoch. Maps get the epoch that is served."""

    varies = False

    @property
    def size(self) -> int:
        return self.parent.size

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return Visits(
            self.parent.visits(np.zeros_like(epochs), positions).rows, epochs
        )

    def inverse(
        self, rows: Integers, epochs: Integers, window: tuple[int, int]
    ) -> Hits:
        return self.parent.inverse(rows, np.zeros_like(epochs), window)

    def _described(self) -> tuple[list[Any], str]:
        return [_FIRST_EPOCH], "[rows fixed: those of epoch 0]"


@final
@dataclass(frozen=True)
class Reordered(ShuffleOrder):
    """The positions of the parent as they are in epoch 0, and permuted in each later epoch."""

    @property
    def shuffle(self) -> Shuffle:
        return Shuffle(self.seed)

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        return self.parent.visits(
            epochs, self._moved(epochs, positions, seeds.permute)
        )

    def inverse(
        self,
        rows: Integers,
        epochs: Integers,
        window: tuple[int, int],  # noqa: ARG002
    ) -> Hits:
        below = self.parent.inverse(rows, epochs, (0, self.size))
        return Hits(
            below.asked,
            self._moved(epochs[below.asked], below.positions, seeds.unpermute),
        )

    def _moved(
        self, epochs: Integers, positions: Integers, move: Callable[..., Any]
    ) -> Integers:
        later = np.flatnonzero(epochs)
        if not len(later):
            return positions
        moved = positions.copy()
        # One key for all positions is much faster than a key for each.
        first = int(epochs[later[0]])
        key = seeds.derive(
            self.seed,
            "part",
            first if (epochs[later] == first).all() else epochs[later],
        )
        moved[later] = move(positions[later], self.size, key)
        return moved

    def _described(self) -> tuple[list[Any], str]:
        return [_REORDERED, self.seed], "[another order in each later epoch]"


def fixed_part(part: Sliced | Selected) -> Order:
    """The part with the same rows in every epoch: those of epoch 0.

    Args:
        part: Positions of an order that may vary.

    Raises:
        ArgumentError: When another part of the order could have the same rows, or could not be read efficiently.
    """
    order = part.parent
    if not order.varies or part.size == 0 or _has_all(part):
        return part
    _check(part)
    if isinstance(order, Reordered):  # a part of a part
        fixed = order.parent
        seed = order.seed
    else:
        fixed = FirstEpoch(order)
        seed = _seed_below(order)
    return Reordered(
        replace(part, parent=fixed),
        int(seeds.derive(seed, "part", *part.describe()[-1])),
    )


def as_before(described: Any) -> Any:
    """A description in which parts have other rows in every epoch, as slices of a shuffle had in older states."""
    if not isinstance(described, list):
        return described
    verbs = [
        verb
        for verb in described
        if not (isinstance(verb, list) and verb and verb[0] in _MARKS)
    ]
    return [as_before(entry) for entry in verbs]


def describe_first_epoch(order: Order) -> list[Any]:
    """Describes what determines epoch 0 of an order, for verbs and stores that use no other epoch."""
    described: list[Any] = as_before(order.describe())
    return described


def parts_in(described: Any) -> list[str]:
    """Calls that make the parts in a description as they were in older states, the innermost first."""
    if not isinstance(described, list):
        return []
    inner = [call for entry in described for call in parts_in(entry)]
    if [_FIRST_EPOCH] not in described:
        return inner
    start = described.index([_FIRST_EPOCH]) + 1
    stop = next(
        index
        for index, verb in enumerate(described)
        if index > start and verb[:1] == [_REORDERED]
    )
    return [*inner, "".join(map(_call, described[start:stop]))]


def _call(verb: list[Any]) -> str:
    if verb[0] != "slice":
        return ".subset_per_epoch(rows)"
    _, start, step, size = verb
    return f".subset_per_epoch({range(start, start + size * step, step)})"


_MARKS = (_FIRST_EPOCH, _REORDERED)


def _has_all(part: Sliced | Selected) -> bool:
    """Whether a part has all positions of its order, each once."""
    if part.size != part.parent.size:
        return False
    return isinstance(part, Sliced) or len(np.unique(part.positions)) == part.size


def _seed_below(order: Order) -> int:
    return next(
        (
            below.shuffle.seed
            for below in depth_first(order)
            if below.shuffle is not None
        ),
        0,
    )


def part_name(part: Sliced | Selected) -> str:
    """The verb that takes a part, for messages."""
    text = part.text()[-1]
    if isinstance(part, Sliced):
        return f"the slice {text}"
    return text


def other_rows(part: Sliced | Selected) -> str:
    """The end of a message: the call that takes the same positions of every epoch."""
    return f"for other rows in every epoch, ds{_call(part.describe()[-1])}"


def _check(part: Sliced | Selected) -> None:
    """Checks that parts of an order are disjoint, and that any order of their rows is read efficiently."""
    order = part.parent
    verb = part_name(part)
    below = depth_first(order)
    if any(each.mixes for each in below):
        raise ArgumentError(
            f"{verb} behind mix() would have other rows in every epoch, so that two "
            "parts share rows; take a part of each dataset before mix(): mix({name: "
            f"ds[:n], …}}, weights); or, {other_rows(part)}"
        )
    if any(isinstance(each, Sampled) for each in below):
        raise ArgumentError(
            f"{verb} behind sample() has draws of rows that others may draw too, so "
            "that two parts share rows; take a part of the rows before sample(): "
            f"ds[:n].sample(weights[:n]); or, {other_rows(part)}"
        )
    if any(isinstance(each, GroupsShuffled) for each in below):
        raise ArgumentError(
            f"{verb} behind shuffle(by=) would have single rows of groups in later "
            "epochs; split(by=) keeps the groups of each part together: call it "
            f"before shuffle(by=); or, {other_rows(part)}"
        )
    check_fixed_rows(
        order,
        verb,
        f"and shuffle and map with loadax after it; or, {other_rows(part)}",
    )
    if order.repeats:
        raise ArgumentError(
            f"{verb} behind a shuffle of repeated rows: a row is at several "
            "positions, so that two parts share rows; take the part before rows are "
            "repeated, and shuffle it: ds[:n].repeat(times).shuffle(seed); or, "
            f"{other_rows(part)}"
        )
    if any(
        each.shuffle is not None and each.shuffle.blocks is not None for each in below
    ):
        raise ArgumentError(
            f"{verb} behind a block shuffle has rows of all blocks, so that later "
            "epochs would read whole blocks for single rows; split() keeps the "
            f"blocks of each part: ds.split([{part.size}, "
            f"{order.size - part.size}]); or take the part before shuffle(); or, "
            f"{other_rows(part)}"
        )
