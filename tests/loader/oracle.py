"""What a batch must be, one row at a time, the slow and obvious way.

And the data, maps and meshes that the loader's tests go through. Worker processes import this for its maps and sources,
so JAX is imported where it is needed: it takes longer than the rest of a worker's start.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadax import Dataset, from_arrays, from_source
from loadax.core.tree import flatten
from loadax.protocols import Columns, Integers, LaneAssignment, Order
from loadax.seeds import row_generator
from loadax.sources.arrays import ArraySource

if TYPE_CHECKING:
    from jax.sharding import AxisType, Mesh

Array = NDArray[Any]
Example = dict[str, Any]


def arrays(rows: int) -> dict[str, Array]:
    """Three leaves whose every value tells its row and column.

    Uint8[4, 8], int64[] (which JAX narrows) and uint16[16].
    """
    return {
        "image": ((np.arange(rows)[:, None] * 37 + np.arange(32)) % 251).astype(np.uint8).reshape(rows, 4, 8),
        "label": np.arange(rows, dtype=np.int64) * 1000 - 7,
        "tokens": (np.arange(rows)[:, None] * 16 + np.arange(16)).astype(np.uint16),
    }


class ReadSource:
    """A source with `read` alone, that counts how often each row was asked for."""

    def __init__(self, tree: Any):
        self._inner = ArraySource(tree)
        self.spec = self._inner.spec
        self.counts = np.zeros(len(self._inner), np.int64)

    def __len__(self) -> int:
        return len(self._inner)

    def read(self, rows: Integers) -> Any:
        np.add.at(self.counts, rows, 1)
        return self._inner.read(rows)


class ColumnSource:
    """A source with `read_into`, that counts how often each element of each leaf was asked for."""

    def __init__(self, tree: Any):
        self._inner = ArraySource(tree)
        self.spec = self._inner.spec
        self.counts = [np.zeros(np.shape(leaf), np.int64) for leaf in flatten(tree)[0]]
        self.whole_reads = 0

    def __len__(self) -> int:
        return len(self._inner)

    def read(self, rows: Integers) -> Any:
        self.whole_reads += 1
        return self._inner.read(rows)

    def read_into(self, rows: Integers, boxes: list[Columns | None], out: list[Array | None]) -> None:
        for counts, columns in zip(self.counts, boxes, strict=True):
            if columns is not None:
                where: Any = (rows, *(slice(*column) for column in columns))
                np.add.at(counts, where, 1)
        self._inner.read_into(rows, boxes, out)


def lane_of(assignments: list[LaneAssignment], place: int) -> int:
    """The lane that a position is dealt to."""
    stretch = [deal for deal in assignments if deal.start <= place][-1]
    return int(stretch.lanes[(place - stretch.start) % len(stretch.lanes)])


@dataclass(frozen=True)
class Recipe:
    """Maps: put on a dataset, and done by hand to one example (which they may change) of a row in an epoch."""

    name: str
    build: Callable[[Dataset], Dataset]
    by_hand: Callable[[Example, int, int], Example]


def _halve(example: Example) -> Example:
    return {
        "label": example["label"],
        "image": example["image"].astype(np.float32) / 2,
        "tokens": example["tokens"][::-1] + 1,
    }


def _noisy(example: Example, rng: np.random.Generator) -> Example:
    return {**example, "image": example["image"] + rng.normal(size=(4, 8)).astype(np.float32)}


def _widen(batch: Example) -> Example:
    return {"image": batch["image"].reshape(-1, 32), "pair": (batch["label"], batch["tokens"].astype(np.float64))}


def _shift(batch: Example) -> Example:
    return {
        "image": batch["image"].astype(np.float32) * 3,
        "label": batch["label"] + 5,
        "tokens": batch["tokens"] ^ 255,
    }


def _one_row(function: Callable[[Any], Any]) -> Callable[[Example, int, int], Example]:
    def by_hand(example: Example, row: int, epoch: int) -> Example:
        result = function({name: np.asarray(value)[None] for name, value in example.items()})
        leaves, structure = flatten(result)
        return structure.build(leaf[0] for leaf in leaves)

    return by_hand


def _noisy_by_hand(place: int) -> Callable[[Example, int, int], Example]:
    return lambda example, row, epoch: _noisy(example, row_generator(3, place, epoch, row))


NONE = Recipe("no map", lambda data: data, lambda example, row, epoch: example)
MAP = Recipe("map", lambda data: data.map(_halve), lambda example, row, epoch: _halve(example))
RANDOM = Recipe("random map", lambda data: data.map(_noisy, rng=True, seed=3), _noisy_by_hand(0))
BATCH = Recipe("map_batch", lambda data: data.map_batch(_widen), _one_row(_widen))
ELEMENTWISE = Recipe("elementwise", lambda data: data.map_batch(_shift, elementwise=True), _one_row(_shift))
CHAIN = Recipe(
    "chain",
    lambda data: data.map_batch(_shift, elementwise=True).map(_noisy, rng=True, seed=3).map(_halve),
    lambda example, row, epoch: _halve(_noisy_by_hand(1)(_one_row(_shift)(example, row, epoch), row, epoch)),
)
RECIPES = (NONE, MAP, RANDOM, BATCH, ELEMENTWISE, CHAIN)

SOURCES: dict[str, Callable[[Any], Dataset]] = {
    "arrays": from_arrays,
    "read": lambda tree: from_source(ReadSource(tree)),
    "objects": lambda tree: from_source(
        [{name: leaf[row] for name, leaf in tree.items()} for row in range(len(tree["label"]))]
    ),
}

ORDERS: dict[str, Callable[[Dataset], Dataset]] = {
    "sequential": lambda data: data,
    "shuffled": lambda data: data.shuffle(seed=5),
    "lanes": lambda data: data.shuffle(seed=5, block=3, window=2, lanes=4),
    "repeated slice": lambda data: data.shuffle(seed=1)[3:-2].repeat(2),
}


@dataclass(frozen=True)
class Oracle:
    """The batches of a run, by a loop over rows. Epochs, remainders and lanes are done here once more, by hand."""

    tree: dict[str, Array]
    order: Order
    recipe: Recipe
    batch_size: int
    remainder: str = "drop"
    _visits: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # of the steps that were asked for

    def steps_per_epoch(self) -> int:
        full, rest = divmod(self.order.size, self.batch_size)
        return full + (1 if rest and self.remainder == "pad" else 0)

    def visits(self, step: int) -> list[tuple[int, int]]:
        """(row, epoch) at every position of the batch; (-1, epoch) for padding."""
        if step not in self._visits:
            self._visits[step] = self._visits_one_by_one(step)
        return self._visits[step]

    def _visits_one_by_one(self, step: int) -> list[tuple[int, int]]:
        epoch, inner = divmod(step, self.steps_per_epoch())
        places = list(range(inner * self.batch_size, min((inner + 1) * self.batch_size, self.order.size)))
        assignments = self.order.lane_assignments(epoch, places[0], places[-1] + 1)
        if assignments:
            places.sort(key=lambda place: lane_of(assignments, place))
        found = []
        for place in places:
            rows, epochs = self.order.visits(np.array([epoch]), np.array([place]))
            found.append((int(rows[0]), int(epochs[0])))
        return found + [(-1, epoch)] * (self.batch_size - len(found))

    def rows(self, step: int) -> list[int]:
        return [row for row, _ in self.visits(step)]

    def example(self, row: int, epoch: int) -> Any:
        return self.recipe.by_hand({name: np.array(leaf[row]) for name, leaf in self.tree.items()}, row, epoch)

    def batch(self, step: int) -> Any:
        """The global batch, as numpy arrays of the dtypes that JAX gives them."""
        import jax

        visits = self.visits(step)
        likes, structure = flatten(self.example(0, 0))
        padding = [np.zeros_like(like) for like in likes]
        examples = [padding if row < 0 else flatten(self.example(row, epoch))[0] for row, epoch in visits]
        columns = []
        for values, like in zip(zip(*examples, strict=True), likes, strict=True):
            narrow = jax.dtypes.canonicalize_dtype(np.asarray(like).dtype)
            columns.append(np.stack(values).astype(narrow))
        batch = structure.build(columns)
        return {**batch, "mask": np.array([row >= 0 for row, _ in visits])} if self.remainder == "pad" else batch


def mesh_of(axes: dict[str, int], axis_type: "AxisType | None" = None, seed: int | None = None) -> "Mesh":
    """A mesh of this process's eight devices, with `Auto` axes by default; with a seed, in random order."""
    import jax
    from jax.sharding import AxisType, Mesh

    axis_type = AxisType.Auto if axis_type is None else axis_type
    devices = np.array(jax.devices(), object)
    if seed is not None:
        devices = np.random.default_rng(seed).permutation(devices)
    return Mesh(devices.reshape(tuple(axes.values())), tuple(axes), axis_types=(axis_type,) * len(axes))


def assert_placed(batch: Any, expected: Any, mesh: "Mesh | None" = None) -> None:
    """Bit-equal on every device, with the very dtype, never weak, on the very mesh."""
    import jax
    from jax.sharding import NamedSharding

    leaves, structure = flatten(batch)
    wanted, wanted_structure = flatten(expected)
    assert structure == wanted_structure
    for path, array, whole in zip(structure.paths, leaves, wanted, strict=True):
        assert isinstance(array, jax.Array), path
        assert (array.shape, array.dtype, array.weak_type, array.committed) == (
            whole.shape,
            whole.dtype,
            False,
            True,
        ), path
        if mesh is not None:
            assert isinstance(array.sharding, NamedSharding), path
            assert array.sharding.mesh is mesh, path
        for shard in array.addressable_shards:
            assert np.asarray(shard.data).tobytes() == np.ascontiguousarray(whole[shard.index]).tobytes(), (
                path,
                shard.index,
            )
