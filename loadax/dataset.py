"""Dataset: a frozen recipe of a source, an order and maps; and the doors through which data comes in."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np

from loadax.errors import ArgumentError, RowIndexError, UnsupportedError
from loadax.plan.blocks import BlockShuffled
from loadax.plan.order import Concatenated, Repeated, Sequential, Shuffled, Sliced
from loadax.plan.split import split as split_order
from loadax.protocols import Order, Source, Tree
from loadax.reader import Reader
from loadax.specs import normalise_spec
from loadax.transforms import BatchMap, Map, Transform, name_of
from loadax.trees import map_leaves

_LANES = 128
_WINDOW = 4  # blocks a lane: with 128 lanes 512 blocks are open, about as many as a large batch has rows


@final
@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Data that can be read at any position of any epoch. Every verb returns a new dataset and leaves this one as it was.

    Verbs compose from left to right over positions: `ds[:k].shuffle(0)` shuffles a fixed subset, and `ds.shuffle(0)[:k]` is
    another subset each epoch. Maps commute with all of them.

    Example:
        >>> import numpy as np
        >>> data = from_arrays({"x": np.arange(6), "y": np.arange(6) ** 2})
        >>> data[2]
        {'x': np.int64(2), 'y': np.int64(4)}
        >>> data.shuffle(seed=0)[:3].read([0, 1, 2])["x"].shape
        (3,)
    """

    source: Source
    order: Order
    maps: tuple[Transform, ...] = field(default=())

    def __len__(self) -> int:
        return self.order.size

    def __repr__(self) -> str:
        verbs = [*map(_verb, self.order.describe()), *(_map_verb(each) for each in self.maps)]
        origin = repr(self.source) if type(self.source).__module__.startswith("loadax.") else type(self.source).__name__
        return f"Dataset({len(self)} rows of {origin}{''.join(verbs)})"

    @cached_property
    def reader(self) -> Reader:
        """The source and the maps; `reader.spec` is what one example looks like."""
        zero = np.zeros(1, np.int64)
        return Reader(self.source, self.maps, self.order.visits(zero, zero) if len(self) else None)

    @property
    def spec(self) -> Tree:
        """A tree of `ArraySpec(shape, dtype)`, of one example. May read one row to find out."""
        return self.reader.spec

    def read(self, positions: Any, epoch: int = 0) -> Tree:
        """The examples at `positions` (ints in `[0, len(self))`, any order) of an epoch: a tree of arrays, rows first.

        Raises:
            RowIndexError: when a position is not there.
        """
        where = np.asarray(positions)
        if where.size and where.dtype.kind not in "iu":
            raise RowIndexError(f"positions are {where.dtype}; pass integers (of a mask: numpy.flatnonzero(mask))")
        where = where.astype(np.int64).reshape(-1)
        wrong = where[(where < 0) | (where >= len(self))]
        if len(wrong):
            raise RowIndexError(f"position {wrong[0]} is not there: positions are at least 0 and below {len(self)}")
        return self.reader.read_visits(self.order.visits(np.full_like(where, _count("epoch", epoch, 0)), where))

    def __getitem__(self, index: Any) -> Any:
        """`ds[i]`: the example at position i of epoch 0. `ds[a:b:c]`: a dataset of those positions."""
        if isinstance(index, slice):
            chosen = range(*index.indices(len(self)))
            return self._with(Sliced(self.order, chosen.start, chosen.step, len(chosen)))
        if isinstance(index, list | np.ndarray):
            raise ArgumentError("an index is an int or a slice; many positions at once are ds.read(positions)")
        position = _integer("index", index)
        if not -len(self) <= position < len(self):
            raise RowIndexError(f"position {position} is not there: the dataset has {len(self)}")
        return map_leaves(lambda leaf: leaf[0], self.read([position % len(self)]))

    def __iter__(self) -> Iterator[Any]:
        """The examples of epoch 0, one by one. For looking at data: a `Dataloader` reads many at once."""
        return (self[position] for position in range(len(self)))

    def shuffle(self, seed: int, block: int | str | None = None, window: int | None = None, lanes: int = _LANES) -> "Dataset":
        """All positions in random order, another one each epoch; see `loadax.seeds.permute`.

        Args:
            seed: any int. Different (seed, epoch) pairs never share an order.
            block: rows that lie together and are read together: blocks are shuffled, then the rows of `window` blocks at a
                time, in each of `lanes`; see `loadax.plan.blocks`. None: every row by itself.
            window: how many blocks a lane mixes (default 4). All of it is part of the order.
            lanes: among how many lanes the positions are dealt.

        Raises:
            ArgumentError: when a value can't be used.
        """
        seed = _integer("seed", seed)
        if block is None:
            if window is not None or lanes != _LANES:
                which = f"window={window}" if window is not None else f"lanes={lanes}"
                raise ArgumentError(f"{which} needs a block: how many rows lie together; pass block= as well")
            return self._with(Shuffled(self.order, seed))
        if isinstance(block, str):
            raise UnsupportedError(
                f"block={block!r}: blocks that follow a store's chunks are not there yet; pass the rows of a chunk"
            )
        window = _WINDOW if window is None else window
        sizes = _count("block", block, 1), _count("window", window, 1), _count("lanes", lanes, 1)
        return self._with(BlockShuffled(self.order, seed, *sizes))

    def repeat(self, times: int) -> "Dataset":
        """`times` epochs of this dataset as one, each in its own order."""
        return self._with(Repeated(self.order, _count("times", times, 1)))

    def split(self, fraction: float, seed: int = 0) -> tuple["Dataset", "Dataset"]:
        """Two datasets that share no row: about `fraction` of the rows, and the rest.

        A row's side follows from its number and `seed` alone: it is the same before and after `shuffle`, and stays when rows
        are appended. Keeps a list of the rows of each side (8 bytes a row).

        Raises:
            ArgumentError: when `fraction` is not between 0 and 1, or the rows that are there change every epoch.
        """
        if not isinstance(fraction, int | float) or not 0 < fraction < 1:
            raise ArgumentError(f"fraction={fraction!r}: pass a number between 0 and 1, the share of the first part")
        first, rest = split_order(self.order, float(fraction), _integer("seed", seed))
        return self._with(first), self._with(rest)

    def map(self, fn: Callable[..., Tree], rng: bool = False, seed: int = 0, spec: Tree | None = None) -> "Dataset":
        """Applies `fn(example)` to every row, or `fn(example, rng)` with a `numpy.random.Generator` that is the row's own.

        Args:
            fn: gets one example (arrays without a row dimension; it may change them), returns a tree that looks the same for
                every row.
            rng: whether it gets the generator, which follows from (seed, place in the chain, epoch, row).
            seed: of the generators.
            spec: what it returns, as a tree of things with shape and dtype. None: found out by mapping one row.
        """
        return self._mapped(Map(_function(fn), _flag("rng", rng), _integer("seed", seed), self.reader.depth, _spec(spec)))

    def map_batch(
        self, fn: Callable[..., Tree], rng: bool = False, seed: int = 0, spec: Tree | None = None, elementwise: bool = False
    ) -> "Dataset":
        """Applies `fn(batch)` to many rows at once: some rows of some step, never a whole batch by contract.

        `fn` must act on each row by itself; what mixes rows belongs in the jitted step.

        Args:
            fn: gets a tree of arrays, rows first, and returns one with as many rows.
            rng: whether it gets a list of generators too, one a row.
            seed: of the generators.
            spec: what it returns for one row. None: found out by mapping one row.
            elementwise: promises that each element follows from the same element of the same leaf alone. Then `fn` may get
                some columns of the rows, and no columns are read that this process's devices don't hold.
        """
        if elementwise and rng:
            raise ArgumentError(
                "elementwise=True with rng=True: random numbers for some columns would depend on the mesh; choose one"
            )
        place = self.reader.depth
        return self._mapped(
            BatchMap(
                _function(fn), _flag("rng", rng), _integer("seed", seed), place, _spec(spec), _flag("elementwise", elementwise)
            )
        )

    def _with(self, order: Order) -> "Dataset":
        return Dataset(self.source, order, self.maps)

    def _mapped(self, transform: Transform) -> "Dataset":
        return Dataset(self.source, self.order, (*self.maps, transform))


def from_arrays(tree: Tree) -> Dataset:
    """A dataset of arrays in memory, or memory-mapped: one row an entry of their first dimension.

    Args:
        tree: a numpy array, or a pytree of them with equal first dimensions.

    Raises:
        SourceError: when a leaf is no array or has no rows, or the leaves' lengths differ; names the leaf.

    Example:
        >>> import numpy as np
        >>> len(from_arrays({"image": np.zeros((10, 8, 8), np.uint8), "label": np.arange(10)}))
        10
    """
    from loadax.sources.arrays import ArraySource

    return from_source(ArraySource(tree))


def from_npy(path: Any) -> Dataset:
    """A dataset of a `.npy` file, or of a pytree of them, memory-mapped: nothing is read until it is asked for.

    Raises:
        SourceError: when a file is missing, cut short, or holds no array of numbers; names it.
    """
    from loadax.sources.npy import open_npy

    return from_source(open_npy(path))


def from_tensorstore(spec: Any) -> Dataset:
    """A dataset of TensorStore arrays: zarr, zarr3, n5 and its other drivers, wherever TensorStore reaches.

    Args:
        spec: a TensorStore spec (a dict with the key `driver`), an open store, or a pytree of these that share their first
            dimension. A missing chunk is an error, not zeros.

    Raises:
        SourceError: when a store can't be opened, or lengths differ; names the leaf.
    """
    from loadax.sources.tensorstore import TensorStoreSource

    return from_source(TensorStoreSource(spec))


def from_zarr(path: Any, variables: Sequence[str] | str | None = None) -> Dataset:
    """A dataset of a zarr array, or of arrays of a zarr group (then examples are dicts), version 2 or 3.

    Args:
        path: a local path or a URL.
        variables: which arrays of a group; None: all of them.

    Raises:
        SourceError: when nothing is there, or a variable is missing; lists what is there.
    """
    from loadax.sources.tensorstore import open_zarr

    return from_source(open_zarr(path, variables))


def from_source(obj: Any) -> Dataset:
    """A dataset of your own data.

    Args:
        obj: a `Source` (with `read`, `spec` and `__len__`), or any object with `__len__` and `__getitem__`, which is called
            with Python ints. One with `__getitems__` is asked for many rows at once (a list of examples comes back).

    Raises:
        ArgumentError: when it is neither.

    Example:
        >>> from_source([{"x": 1.0}, {"x": 2.0}])[1]
        {'x': np.float64(2.0)}
    """
    if hasattr(obj, "read") and hasattr(obj, "__len__"):
        source = obj
    else:
        from loadax.sources.objects import ObjectSource

        source = ObjectSource(obj)
    return Dataset(source, Sequential(len(source)))


def concat(datasets: Sequence[Dataset]) -> Dataset:
    """One dataset behind another. Each part keeps its own order and maps; rows are numbered on from part to part.

    A part's random maps count its own rows: give the maps of different parts different seeds, or map the whole.

    Raises:
        ArgumentError: when there is none, or an entry is no dataset.
        LeafError: when their element specs differ; names the part and the leaf.
    """
    from loadax.sources.concatenated import ConcatenatedSource

    parts = [as_dataset(each) for each in datasets]
    if not parts:
        raise ArgumentError("concat() got no dataset; pass at least one")
    order = Concatenated(tuple(part.order for part in parts), tuple(len(part.source) for part in parts))
    return Dataset(ConcatenatedSource([part.reader for part in parts]), order)


def as_dataset(data: Any) -> Dataset:
    """`data` as a dataset: itself; arrays, or a dict or tuple of them; a `Source`; anything that `from_source` takes."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, dict | tuple) or hasattr(data, "__array__"):
        return from_arrays(data)
    if isinstance(data, str | os.PathLike):
        raise ArgumentError(f"data={data!r} is a path; open it with loadax.from_npy or loadax.from_zarr")
    return from_source(data)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name}={value!r}: pass an int")
    return int(value.__index__())


def _count(name: str, value: Any, least: int) -> int:
    number = _integer(name, value)
    if number < least:
        raise ArgumentError(f"{name}={number}: pass {least} or more")
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool):
        hint = "; the seed of its numbers is seed=" if name == "rng" else ""
        raise ArgumentError(f"{name}={value!r}: pass True or False{hint}")
    return bool(value)


def _function(fn: Any) -> Callable[..., Tree]:
    if not callable(fn):
        raise ArgumentError(f"fn={fn!r} can't be called; pass a function of one example")
    return fn


def _spec(spec: Tree | None) -> Tree | None:
    return None if spec is None else normalise_spec(spec, "spec")


def _verb(part: list[Any]) -> str:
    match part:
        case ["rows", _]:
            return ""
        case ["slice", start, step, size]:
            return f"[{start} + {step} * range({size})]" if step != 1 else f"[{start}:{start + size}]"
        case ["concat", parts]:
            return f" of {sum(rows for rows, _ in parts)} rows"
        case [name, *arguments]:
            return f".{name}({', '.join(map(str, arguments))})"
    return ""


def _map_verb(each: Transform) -> str:
    return f".{'map' if isinstance(each, Map) else 'map_batch'}({name_of(each.function)}{', rng=True' if each.rng else ''})"
