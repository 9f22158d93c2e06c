"""Dataset: a frozen recipe of a source, an order and maps."""

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, final, overload

import numpy as np

from loadax.core.arguments import (
    MOST_POSITIONS,
    choice,
    dimensions,
    flag,
    function,
    index_key,
    integer,
    optional_flag,
    refuse_given,
    shown,
)
from loadax.core.formatting import count_text, name_of
from loadax.core.replacements import explain_arguments, missing_attribute
from loadax.core.spec import describe_spec, flatten_spec, normalise_spec
from loadax.core.tree import Structure, flatten, map_leaves
from loadax.errors import ArgumentError, RowIndexError, StreamError
from loadax.plan.order import (
    check_fixed_rows,
    check_streams,
    depth,
    depth_first,
    has_stream,
)
from loadax.plan.sequential import Sequential
from loadax.plan.shuffle import Shuffled
from loadax.protocols import (
    ArraySpec,
    Engine,
    FilterTransform,
    Integers,
    MapTransform,
    Order,
    RandomMapTransform,
    Tree,
    Visits,
)
from loadax.reader import DISTINCT, Reader, readers_of_parts
from loadax.redaction import redact
from loadax.seeds import ORDER_VERSION
from loadax.sources.base import BaseSource
from loadax.sources.checks import check_rows, chunk_rows
from loadax.transforms import (
    DEFAULT_SEED,
    BatchMap,
    Map,
    Transform,
    checked_function,
    checked_seed,
)

if TYPE_CHECKING:
    from loadax.dataset_explanation import DatasetExplanation
    from loadax.row_index.statistics import Statistics

_LANES = 128
_OPEN_BYTES = 1 << 30  # default limit of the windows of all lanes, over all hosts
# Rows and bytes of a chunk of the largest leaf, above which decoding a chunk for one row gets a warning.
_MANY_ROWS = 4
_MANY_BYTES = 8 << 10
_MOST_VERBS = 100  # well below Python's recursion limit: verbs are nested calls
# default of required arguments whose error says more than Python's
_NEEDED: Any = None
# limit of block, window and lanes each, so that their product fits
_MOST_ROWS = 1 << 30
_RNG_HINT = "; pass the seed of the generators as seed="
# blocks per lane: with 128 lanes, 512 blocks are open, about the rows of a large batch
_WINDOW = 4


@final
class Dataset:
    """Data with random access to any position of any epoch.

    Verbs return a new dataset and don't change this one. They compose from left to right over positions. A part of a
    shuffled dataset has the same rows in every epoch: `ds.shuffle(0)[:k]` has those of the first k positions of epoch
    0, and shares none with `ds.shuffle(0)[k:]`. Maps commute with all other verbs.

    Examples:
        >>> import numpy as np
        >>> from loadax import from_arrays
        >>> data = from_arrays({"x": np.arange(6), "y": np.arange(6) ** 2})
        >>> data[2]
        {'x': np.int64(2), 'y': np.int64(4)}
        >>> data.shuffle(seed=0)[:3].read([0, 1, 2])["x"].shape
        (3,)
    """

    maps: tuple[Transform, ...]
    _make: Callable[[], BaseSource]
    _made_of: tuple[Reader, Order, tuple[Any, ...]] | None = None

    # Not a dataclass: `dataclasses.asdict` of a configuration would make a dict of it.
    def __init__(
        self,
        source: BaseSource,
        order: Order | None = None,
        maps: tuple[Transform, ...] = (),
    ):
        if order is None:
            order = Sequential(len(source), source.traits.own_epochs)
        vars(self).update(source=source, order=order, maps=maps)
        if depth(order) > _MOST_VERBS:
            raise ArgumentError(
                f"this dataset is a chain of more than {_MOST_VERBS} verbs; if a "
                "loop calls one, call it once instead: concat() with a list of all "
                "datasets, one slice, exclude() with all rows"
            )
        check_streams(order)

    @cached_property
    def source(self) -> BaseSource:
        """Source of the rows, before maps."""
        return self._make()

    @cached_property
    def order(self) -> Order:
        """Order of the rows."""
        return Sequential(len(self.source))

    def __getstate__(self) -> dict[str, Any]:
        known = {**vars(self), "source": self.source, "order": self.order}
        return {
            name: value
            for name, value in known.items()
            if name not in ("_make", "_made_of")
        }

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(
            f"cannot assign to field {name!r}; verbs return a new dataset"
        )

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(
            f"cannot delete field {name!r}; verbs return a new dataset"
        )

    def __deepcopy__(self, _: object) -> "Dataset":
        return self  # it never changes

    def __len__(self) -> int:
        self._check_random_access("len(ds)")
        return self.order.size

    def __repr__(self) -> str:
        verbs = self.verbs[1:]  # the source tells of what comes before
        shown = "".join(
            verb if verb.startswith("[") else f".{verb}" for verb in verbs
        )
        if self.is_stream:
            return redact(f"Dataset({self.source!r}{shown})")
        return redact(f"Dataset({self._length_text()} of {self.source!r}{shown})")

    def _length_text(self) -> str:
        if self.order.by_step:
            return "step-scheduled rows"
        if self.order.size >= MOST_POSITIONS:
            return "endless rows"
        return count_text(len(self), "row")

    if not TYPE_CHECKING:  # type checkers must still report misspelt names
        __getattr__ = missing_attribute

    @cached_property
    def reader(self) -> Reader:
        """The source with the maps. `reader.spec` is the spec of one example."""
        zero = np.zeros(1, np.int64)
        # A mixture that is scheduled by step has rows, but no length yet.
        some = self.order.by_step or self.order.size
        return Reader(
            self.source, self.maps, self.order.visits(zero, zero) if some else None
        )

    def probed_at(self, visits: Visits | None) -> "Dataset":
        """The same dataset, with its spec inferred from the example at this visit instead of the first one."""
        made = copy.copy(self)
        vars(made)["reader"] = replace(self.reader, first=visits)
        return made

    def reordered(self, order: Order) -> "Dataset":
        """The same rows in another order, with the spec and maps as they are."""
        made = copy.copy(self)
        vars(made).update(order=order, reader=self.reader)
        return made

    @cached_property
    def is_stream(self) -> bool:
        """Whether rows come from a stream, so that there is no length and no random access."""
        return has_stream(self.order)

    @property
    def verbs(self) -> tuple[str, ...]:
        """The source's rows, and each verb and map applied to them, as text."""
        return (*self.order.text(), *(transform.text() for transform in self.maps))

    @property
    def spec(self) -> Tree:
        """Pytree of `ArraySpec(shape, dtype)` for one example. May read one row to infer it."""
        return self.reader.spec

    def explain(self) -> "DatasetExplanation":
        """Explains source, verbs, parts and leaves, and what the order promises. May read one row to infer the spec.

        `print` shows it, and `explain().plot()` draws the order with matplotlib: the row at each position, or shares
        of a mixture; documents in packed rows; lengths of documents. `Dataloader.explain` tells what a run will read.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> print(from_arrays(np.arange(6.0)).shuffle(seed=0).explain().promises[1])
            an epoch has a row at most once
        """
        from loadax.dataset_explanation import explain_dataset

        return explain_dataset(self.order, self.reader, self.verbs)

    def read(self, positions: Any, epoch: int = 0) -> Tree:
        """Reads the examples at `positions` of an epoch into a pytree of arrays, rows first.

        Args:
            positions: Ints in `[0, len(self))`, in any order.
            epoch: Epoch to read from.

        Raises:
            RowIndexError: If a position is out of range.
        """
        where = check_rows(positions, len(self), "position")
        epoch = integer("epoch", epoch, 0, MOST_POSITIONS // max(1, len(self)))
        return self.reader.read_visits(
            self.order.visits(np.full_like(where, epoch), where)
        )

    def __getitem__(self, index: Any) -> Any:
        """The example at position i of epoch 0, `ds[i]`, or a dataset of several positions.

        `ds[a:b:c]` is the dataset of these positions, and `ds[[3, 1, 4]]` is `ds.select([3, 1, 4])`. Its rows are the
        same in every epoch, those of epoch 0: `ds.shuffle(0)[:k]` and `ds.shuffle(0)[k:]` share no row. In epoch 0 they
        have the order of `ds`, and in each later epoch an order of their own.
        """
        if isinstance(index, slice):
            from loadax.plan.slice import Sliced

            chosen = range(*index.indices(len(self)))
            return self._part(
                Sliced(self.order, chosen.start, chosen.step, len(chosen))
            )
        if isinstance(index, list | range) or dimensions(index):
            return self._select(index, "index")
        position = integer(
            "index",
            index,
            remedy="a position, an int; a leaf of its example is data[0]['name']",
        )
        if not -len(self) <= position < len(self):
            raise RowIndexError(
                f"position {position} is out of range for a dataset of length "
                f"{len(self)}"
            )
        if self.reader.traits.reads_examples:  # shapes may differ
            return self.reader.examples(
                self.order.visits(
                    np.zeros(1, np.int64), np.array([position % len(self)])
                )
            )[0]
        return map_leaves(lambda leaf: leaf[0], self.read([position % len(self)]))

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the examples of epoch 0, to inspect data. A `Dataloader` reads many rows at once."""
        return (self[position] for position in range(len(self)))

    @explain_arguments
    def shuffle(
        self,
        seed: int = _NEEDED,
        block: int | str | None = None,
        window: int | None = None,
        lanes: int = _LANES,
        *,
        pinned: bool = False,
        buffer_size: int | None = None,
        by: Any = None,
    ) -> "Dataset":
        """Permutes all positions, differently in each epoch; see `loadax.seeds.permute`.

        The rows of a stream are shuffled in a buffer, `shuffle(seed, buffer_size=1000)`: those of each lane for itself,
        differently in each epoch. A row waits for `buffer_size` rows of its lane on average, and for less than twice as
        many. A resume is exact. It reads the rows of the buffer again: up to 3 x `buffer_size` + 1024 rows of a lane
        that has states, and all rows of the epoch before the step of one that has none.

        Args:
            seed: Seed of the permutation, any int. Different (seed, epoch) pairs never share an order.
            block: Rows of a block. Blocks are shuffled, and then rows within each `window` blocks of each of `lanes`
                lanes; see `loadax.plan.block_shuffle`. "chunks": the chunk size of the source, so that each chunk is
                decoded once per epoch. None: rows are shuffled individually.
            window: Blocks that a lane mixes at a time. None: 4, or fewer if chunks are so large that more than 1 GiB
                would be open. It is part of the order.
            lanes: Number of lanes that blocks are assigned to, round-robin.
            pinned: Whether blocks belong to the same lane in every epoch, and only their order in it changes. A host
                whose share of the batch is contiguous then reads the same 1/hosts of the data in every epoch, which its
                local cache can hold. One order serves any number of hosts: lanes best have it as a divisor.
            buffer_size: For streams alone, which need it: rows that each lane keeps in memory to choose from, and reads
                before its first one.
            by: Groups of rows, such as episodes: offsets or the name of a leaf, as `windows(within=)` takes them. Whole
                groups are shuffled, and their rows stay in their order, one after the other. None: single rows are.

        Raises:
            ArgumentError: If a value can't be used, or the source has no chunks.

        Warns:
            UserWarning: If rows are shuffled individually although the source decodes them in chunks. Says what that
                costs.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, from_arrays, from_stream
            >>> sorted(from_arrays(np.arange(5)).shuffle(seed=0).read(range(5)).tolist())
            [0, 1, 2, 3, 4]
            >>> blocks = from_arrays(np.arange(64)).shuffle(seed=0, block=4, lanes=4, pinned=True)
            >>> loader = Dataloader(blocks, batch_size=16, num_epochs=10, shard_index=1, shard_count=2)
            >>> read = np.concatenate([loader.local_rows(step) for step in range(len(loader))])
            >>> len(np.unique(read // 4)), "of 16 blocks, in ten epochs"
            (8, 'of 16 blocks, in ten epochs')
            >>> stream = from_stream(lambda lane, lanes: iter(range(lane, 80, lanes)), lanes=2)
            >>> batches = list(Dataloader(stream.shuffle(seed=0, buffer_size=10), batch_size=16))
            >>> sorted(np.concatenate(batches).tolist()) == list(range(80))
            True
        """
        seed = integer(
            "seed",
            seed,
            most=None,
            remedy="an int, as in shuffle(seed=0); each epoch gets another order",
        )
        if any(below.mixes for below in depth_first(self.order)):
            raise ArgumentError(
                "shuffle() after mix() would break its proportions; call it before: "
                "mix({name: ds.shuffle(seed)}, …)"
            )
        pinned = flag("pinned", pinned)
        blocks = dict[str, Any]()
        if self.is_stream or by is not None:
            blocks = {
                "block": block,
                "window": window,
                "lanes": None if lanes == _LANES else lanes,
                "pinned": pinned or None,
            }
        if self.is_stream:
            return self._shuffled_stream(seed, buffer_size, **blocks, by=by)
        if buffer_size is not None:
            raise ArgumentError(
                f"buffer_size={shown(buffer_size)} is for streams; all rows of this "
                f"dataset are shuffled, without a buffer: data.shuffle(seed={seed})"
            )
        if by is not None:
            from loadax.row_index.group_verbs import shuffle_groups

            return self._with(
                shuffle_groups(self.order, self.reader, by, seed, blocks)
            )
        if block is None:
            if window is not None or lanes != _LANES or pinned:
                if window is not None:
                    which = f"window={window}"
                elif lanes != _LANES:
                    which = f"lanes={lanes}"
                else:
                    which = "pinned=True"
                raise ArgumentError(
                    f"{which} needs block=, the number of rows of a block; pass "
                    "block= as well"
                )
            self._warn_of_chunks()
            return self._with(Shuffled(self.order, seed))
        from loadax.plan.block_shuffle import BlockShuffled

        if isinstance(block, str) or window is None:
            chunk = chunk_rows(self.source)
        else:
            chunk = None
        if isinstance(block, str):
            choice(
                "block",
                block,
                ["chunks"],
                "a number of rows, or 'chunks' for the chunk size of the source",
            )
            if chunk is None:
                raise ArgumentError(
                    f"block='chunks': {self.source!r} has no chunks, or is a "
                    "concat() of which a part has none or is mapped before it: map "
                    f"after concat(), or use shuffle(seed={seed})"
                )
            block = chunk
        block = integer("block", block, 1, _MOST_ROWS)
        lanes = integer("lanes", lanes, 1, _MOST_ROWS)
        if window is None:
            if chunk is not None and len(self):
                open_bytes = lanes * block * self.reader.source_row_bytes
            else:
                open_bytes = 0
            window = max(1, min(_WINDOW, _OPEN_BYTES // max(1, open_bytes)))
        return self._with(
            BlockShuffled(
                self.order,
                seed,
                block,
                integer("window", window, 1, _MOST_ROWS),
                lanes,
                pinned,
            )
        )

    def _shuffled_stream(
        self, seed: int, buffer_size: int | None, **others: Any
    ) -> "Dataset":
        from loadax.plan.stream import StreamOrder, lane_verbs
        from loadax.sources.stream.shuffled_lanes import shuffled_stream

        stream, text, facts = shuffled_stream(
            self.source, seed, buffer_size, **others
        )
        verbs = lane_verbs(
            [*self.order.text(), text], [*self.order.describe(), facts]
        )
        # maps get the shuffled rows
        return Dataset(stream, StreamOrder(stream.lanes, verbs), self.maps)

    def select(self, rows: Any) -> "Dataset":
        """Selects the listed positions, in the order of the list, with repeats; `ds[[3, 1, 4]]` does the same.

        Like a slice, it is about positions of epoch 0, and has the same rows in every epoch, also after a shuffle:
        `ds.shuffle(0).select(rows)` has those that epoch 0 has at these positions. Keeps the list in memory (8 bytes
        per entry; none for a range). A row that is listed twice gets the same random numbers from a random map both
        times.

        Args:
            rows: Positions as a list, a range or int64[n], negative ones counted from the end, or bool[len(self)], True
                for positions to keep.

        Raises:
            ArgumentError: If it is not such a list, or a mask of another length; or if other positions would have the
                same rows, so that two parts can't be kept apart: behind `mix`, `sample`, or a shuffle of `repeat` or of
                windows that overlap. Or behind a block shuffle.
            RowIndexError: If a position is out of range.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> data = from_arrays(np.array([10, 11, 12, 13, 14]))
            >>> [int(value) for value in data.select([3, 1, -1, 3])]
            [13, 11, 14, 13]
            >>> [int(value) for value in data[data.read(range(5)) > 12]]
            [13, 14]
        """
        return self._select(rows, "rows")

    def subset_per_epoch(self, positions: Any) -> "Dataset":
        """Selects the same positions of every epoch: another part of the rows in each, if the order changes.

        Use it for epochs that are shorter than the dataset, such as 10,000 random rows of a million in each, or 10,000
        examples of an endless mixture. Not for a split: over some epochs, two such parts share nearly all rows, and
        `ds[:k]`, `split` and their like don't.

        Args:
            positions: Positions of an epoch, such as `range(10_000)`; anything that `select` takes.

        Raises:
            ArgumentError: If it is not such a list, or a mask of another length.
            RowIndexError: If a position is out of range.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> data = from_arrays(np.arange(100)).shuffle(seed=0)
            >>> short = data.subset_per_epoch(range(10))
            >>> len(short), len({*short.read(range(10)).tolist()} & {*short.read(range(10), epoch=1).tolist()}) < 10
            (10, True)
            >>> fixed = data[:10]
            >>> len({*fixed.read(range(10)).tolist()} & {*fixed.read(range(10), epoch=1).tolist()})
            10
        """
        from loadax.row_index.lists import select

        self._check_random_access("subset_per_epoch()")
        return self._with(select(self.order, positions, "positions"))

    def sample(
        self,
        weights: Any,
        size: int | None = None,
        seed: int = 0,
        *,
        by: Any = None,
    ) -> "Dataset":
        """Draws rows with replacement, each in proportion to its weight, in another way in each epoch.

        Every position is an independent draw that depends only on (seed, epoch, position), so any position can be read
        directly. Draws are in random order: a shuffle before it is refused, and one after it changes nothing that
        matters. A row that is drawn again gets other random numbers from a random map. `Dataloader.find` looks at every
        position of the steps that it searches.

        Args:
            weights: A weight of at least 0 for each row, as a list or an array; rows of weight 0 are never drawn. They
                become integers once: exactly, if they are integers with a sum of at most 2**44, else rounded to a
                2**44th of their sum. Keeps 8 bytes per row.
            size: Number of draws in an epoch. None: as many as there are rows.
            seed: Seed of the draws, any int.
            by: Groups that weights are given for, one each: offsets or the name of a leaf, as `windows(within=)` takes
                them. A draw is a group, in proportion to its weight, and one of its rows at random: equal weights draw
                from short and long episodes alike. It keeps 16 bytes per group, and nothing per row.

        Raises:
            ArgumentError: If a weight is negative or not finite, all are zero, their number is not that of the rows or
                groups, a group without rows has one, or the order before it changes every epoch.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> labels = np.array([0] * 90 + [1] * 10)
            >>> balanced = from_arrays({"label": labels}).sample(1 / np.bincount(labels)[labels], size=1000)
            >>> bool(450 < balanced.read(range(1000))["label"].sum() < 550)
            True
        """
        from loadax.row_index.lists import sample

        if size is None:
            size = len(self)
        else:
            size = integer("size", size, 1, MOST_POSITIONS)
        seed = integer("seed", seed, most=None)
        if by is not None:
            from loadax.row_index.group_offsets import given_offsets

            by = given_offsets(self.order, self.reader, by, "by", "sample")
        return self._with(sample(self.order, weights, size, seed, by))

    def zip(self, other: "Dataset", version: int = DISTINCT) -> "Dataset":
        """The rows of this dataset beside those of another: an example is a tuple of two.

        See `loadax.zip`, for more than two datasets, for examples that are dicts, and for `version`.

        Raises:
            ArgumentError: If the other is not a Dataset, or has another length.
        """
        if not isinstance(other, Dataset):
            raise ArgumentError(
                f"other={shown(other)} is not a Dataset; loadax.zip((ds, other)) "
                "takes other data"
            )
        return zipped([self, other], flatten((0, 1))[1], version)

    def windows(
        self,
        length: int,
        stride: int = 1,
        lead: int | None = None,
        targets: int = 1,
        every: int = 1,
        seams: Literal["avoid", "cross"] = "avoid",
        *,
        within: Any = None,
        pad: Literal["edge", "zeros"] | None = None,
        short: Literal["error", "drop"] = "error",
    ) -> "Dataset":
        """Makes sliding windows of consecutive rows: an example is `length` rows, stacked along a new first dimension.

        `stride`, `lead` and `every` count rows of this dataset, such as hours; `length` and `targets` count the rows
        that an example holds. Only those are read. Rows that several windows of one read share are mapped once.

        Windows of a slice stay within it: `ds[:800].windows(4)` and `ds[800:].windows(4)` share no row, and so do those
        of the parts of `ds.split(0.8, contiguous=True)`. Windows that overlap must not be split at random.

        Args:
            length: Rows of a window.
            stride: Rows between the starts of consecutive windows.
            lead: For forecasts: examples become dicts of `inputs`, the window, and `targets`, rows that start `lead`
                rows after the window's last row (1: the next one; `every`: the next one at that spacing).
            targets: Number of rows of `targets`.
            every: Rows from one row of a window to the next, and from one target to the next: with 6, windows of hourly
                data hold every sixth hour.
            seams: What happens where one part of `concat` ends and the next begins. "avoid": no window or target
                crosses such a seam, since there may be a gap in time, and the first window of each part begins with
                it. "cross": rows are taken as if the parts were one. Seams are not known behind `cache` and `windows`:
                call this before them.
            within: Groups of rows, such as episodes, that no window leaves: offsets or the name of a leaf, as `offsets`
                returns or takes them. The first window of each group begins with it. None: the dataset is one group.
            pad: For windows within groups, values of rows that a window lacks at the ends of its group: "edge", those
                of the group's first or last row; or "zeros". Then each row, or each `stride`-th one of its group, has a
                window: it is the window's first row, and the last one where there are targets. A leaf tells which rows
                are the group's: "window_mask", bool[length], in examples that are dicts, and beside "data" otherwise;
                with targets, "inputs_mask" and "targets_mask". None: windows lack no rows.
            short: What happens with groups that have less rows than a window, without `pad`: "error", or "drop", to
                have no window of them.

        Raises:
            ArgumentError: If a value can't be used, or windows follow a verb that leaves rows out or reorders them,
                such as `filter` and `shuffle`. Before them, slices, `concat`, `zip`, `map` and `map_batch` are allowed;
                with `within`, also verbs that leave out whole groups.
            SourceError: If there are too few rows for one window.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> hours = from_arrays({"t": np.arange(10)})
            >>> hours.windows(3, lead=2)[4]
            {'inputs': {'t': array([4, 5, 6])}, 'targets': {'t': array([8])}}
            >>> hours.windows(3, every=2)[4]
            {'t': array([4, 6, 8])}
            >>> frames = from_arrays({"episode": np.array([0, 0, 0, 1, 1]), "t": np.arange(5)})
            >>> chunks = frames.windows(2, within="episode", pad="edge")
            >>> chunks.read(range(5))["t"].tolist()
            [[0, 1], [1, 2], [2, 2], [3, 4], [4, 4]]
            >>> chunks[2]["window_mask"]
            array([ True, False])
        """
        from loadax.composition.windowed import (
            WindowSource,
            window_options,
            window_remedy,
        )

        self._check_random_access(
            "windows()",
            f"call windows({length}) before to_stream(), or make them in open_lane()",
        )
        check_fixed_rows(self.order, "windows()")
        if self.order.runs is None and within is None:
            raise ArgumentError(
                f"windows() needs consecutive rows; {window_remedy(self.order, length)}"
            )
        options = window_options(length, stride, lead, targets, every, seams, pad)
        if within is None and pad is None and short == "error":
            return Dataset(
                WindowSource(self.reader, self.reader.spec, self.order, options)
            )
        from loadax.row_index.group_verbs import group_windows

        return Dataset(group_windows(self.reader, self.order, options, within, short))

    def offsets(
        self,
        by: str | None = None,
        *,
        index: str | os.PathLike[str] | None = None,
        executor: Engine | None = None,
        progress: bool | None = None,
    ) -> Integers:
        """Returns where groups of consecutive rows begin and end, such as episodes, files or patients.

        Group g has the positions from `offsets[g]` to `offsets[g + 1]`. `windows(within=)`, `split(by=)`, `sample(by=)`
        and `shuffle(by=)` take them; others come from lengths: `numpy.append(0, numpy.cumsum(lengths))`.

        Args:
            by: Name of the leaf of integers or text whose value all rows of a group have. It is read once, now, and
                nothing is kept but the groups. None: the groups that rows come in: parts of `concat`, lists of
                `flat_map(counts=)`, groups of `windows` or of `split(by=offsets)`.
            index: As in `filter`.
            executor: As in `filter`.
            progress: As in `filter`.

        Returns:
            int64[groups + 1], from 0 to `len(self)`.

        Raises:
            ArgumentError: If there is no such leaf, rows of a group are not together, or the order changes every epoch.

        Examples:
            >>> import numpy as np
            >>> from loadax import concat, from_arrays
            >>> frames = from_arrays({"episode": np.array([7, 7, 7, 4, 4]), "t": np.arange(5)})
            >>> frames.offsets("episode")
            array([0, 3, 5])
            >>> concat([frames, frames]).offsets()
            array([ 0,  5, 10])
        """
        from loadax.row_index.build import scan_options
        from loadax.row_index.group_offsets import dataset_offsets

        self._check_random_access("offsets()")
        options = scan_options(index, None, executor, progress)
        return dataset_offsets(self.order, self.reader, by, options)

    def pack(
        self,
        seq_len: int | Mapping[Any, int],
        *,
        method: Literal["split", "best_fit", "first_fit"] = "split",
        long: Literal["error", "cut", "drop"] = "error",
        window: int | None = None,
        align: int = 1,
        most_documents: int | None = None,
        value: Any = 0,
        bos: Any = None,
        targets: Literal["shift", "given"] | None = None,
        offsets: Mapping[str, str] | None = None,
        missing: int | None = None,
        add: Sequence[str] = ("segment_ids", "positions", "loss_mask"),
        index: str | os.PathLike[str] | None = None,
        key: str | None = None,
        executor: Engine | None = None,
        progress: bool | None = None,
    ) -> "Dataset":
        """Packs documents of any length into rows of `seq_len`.

        A document is an array of entries, or a dict of such arrays of equal length; an entry is a number, or an array
        of a fixed shape. An example is a dict of the documents' leaves (a bare array becomes `tokens`), padded to
        `seq_len`, and of `segment_ids` (int32: 1, 2, … for the documents of the row, 0 for padding), `positions`
        (int32: from 0 in every segment) and `loss_mask` (bool: whether the previous entry is in the same segment, so
        that this one can be predicted). Documents may have a leaf `loss_mask` of their own (bool), such as False for
        the entries of a prompt: where it is False, the row's is too.

        Rows of `targets="shift"` have `inputs` and `targets`, both of `seq_len`, in place of `tokens` (or of the only
        leaf). A document of n entries gives n - 1 pairs of an entry and the next one, n with `bos`, and methods, `long`
        and `align` count pairs: no target is lost, also where a document is cut. `loss_mask` is True for all pairs;
        where the documents' own is False for the target, it is too. Other leaves stay with the inputs.

        Documents are packed once, in the order of epoch 0, even if that order changes with the epoch. Only their
        lengths are needed for that, so packed rows have random access. Later verbs apply to packed rows: `shuffle`
        shuffles them. Split before it: a `split` of rows in which documents are cut is refused, as one document would
        be in two parts. Empty documents are dropped.

        A stream is packed as it is read, each lane by itself and in each epoch in its own way, from the first document
        on; see `to_stream`. It has neither a length nor random access. `"split"` pads the last row of a lane's epoch.
        The other methods take the fullest row that the documents held by a lane can make, and every eighth time the row
        of the oldest one.

        Leaves of a document may have different lengths, such as `inputs` and `targets`, or the nodes and edges of a
        graph, if `seq_len` is a dict of the row's length for each budget. A document is then put into a row where all
        of its leaves fit. Each budget `x` has `x_segment_ids` and `x_positions` of its own, with the same number for a
        document in all budgets, and there is no `loss_mask`. `method` is "best_fit" or "first_fit", and `long` is
        "error" or "drop".

        A leaf of one value a document, such as a label of a graph, becomes `[most_documents, *shape]`; then
        `documents_segment_ids` (int32[most_documents]: 1, 2, …, 0 for padding) tells how many there are. With one
        length that is any number, with a dict also an array whose shape is the same for all documents.

        Args:
            seq_len: Entries of a row; or a dict of them by leaf, a budget each. Leaves that share one are a tuple:
                `{"nodes": 512, ("edges", "senders", "receivers"): 4096}`, whose name is the first. A leaf that is not
                named has the budget that is as long as it in the first documents.
            method: "split": documents are concatenated and cut every `seq_len` entries; only the last row is padded.
                "best_fit" or "first_fit": documents are not cut, but fitted into rows from the longest to the shortest;
                packed rows are in the order of their first documents.
            long: What best_fit and first_fit do with documents longer than `seq_len`. "error"; "cut": they are cut into
                parts of `seq_len` and a rest, each a segment of its own; "drop": they are dropped.
            window: Number of consecutive documents that are fitted together. None: 1,048,576; 4,096 if `seq_len` is a
                dict, where the time per document grows with it. Of a stream: number of documents, or parts of long
                ones, that a lane holds. None: as many as fill 4 rows; for its first two rows, 2 or 3.
            align: best_fit and first_fit begin every document at a multiple of this column, such as the block size of
                an attention kernel. It divides `seq_len`.
            most_documents: Largest number of documents that best_fit and first_fit put into a row. None: no limit.
                Needed if a leaf has one value a document.
            value: Value of the padding of the documents' leaves. Or a dict of values by leaf, 0 for the others:
                `{"labels": -100}`.
            bos: Value of an entry that is put before every document that is not empty, such as the token that begins a
                sequence. It is an entry like the others, at position 0, so that the first token is predicted from it.
                Or a dict of values by leaf, 0 for the others. None: no such entry.
            targets: "shift": rows of inputs and targets, which are the next entries. "given": documents bring their
                targets, shifted, beside their inputs, such as `tokens[:-1]` and `tokens[1:]`. `loss_mask` is then True
                for all entries of documents, but those of `bos`. None: `loss_mask` is for targets that are shifted
                after packing, which loses the last target of each row.
            offsets: Leaves of indices, each with the budget that it is an index of: `{"senders": "nodes"}`. The entries
                of that budget before the document in its row are added, so that they are indices of the row. Padding
                stays `value`. An index that is negative, or beyond its document, is an error.
            missing: Value of leaves of indices that stays as it is, such as -1 for a missing neighbour. None: no value.
            add: Leaves that are added, any of the three; with several budgets, those of each.
            index: Folder that keeps the lengths and the plan for later runs; it is created if needed. An index of other
                data is rebuilt, which is logged. While lengths are measured, it keeps what is finished, as in `filter`;
                processes that share it measure them together. Without it, documents of unknown length are all read in
                every run, when the packed rows are first needed: not by `pack` itself, nor by a `cache` after it that
                exists. A run of several processes needs it, or such a `cache`. Not for streams.
            key: Identifier of the maps before `pack` in the index; change it when they change. Needed for maps that use
                objects, such as most tokenizers. None: the maps' code, closure values and globals identify them.
            executor: What measures lengths instead of threads, as in `filter`.
            progress: Whether to show a progress bar while reading them. None: if stderr is a terminal.

        Raises:
            ArgumentError: If a value can't be used, a document is longer than `seq_len` and `long` is "error" (in a
                stream: when it is read), or all documents are dropped.
            LeafError: If a record is not a document. On reading an index that is not one of its document. Names the row
                and the leaf.
            SourceError: If lane 0 of a stream has no documents.

        Warns:
            UserWarning: If documents bring shifted targets, and `targets` is None.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_source
            >>> packed = from_source([np.array([5, 6, 7]), np.array([8, 9]), np.array([4])]).pack(4, method="best_fit")
            >>> packed.read([0, 1])["tokens"].tolist(), packed[0]["segment_ids"].tolist()
            ([[5, 6, 7, 4], [8, 9, 0, 0]], [1, 1, 1, 2])
            >>> pairs = [{"inputs": [5, 6, 7], "targets": [1]}, {"inputs": [8], "targets": [2, 3]}]
            >>> row = from_source(pairs).pack({"inputs": 4, "targets": 4}, method="best_fit")[0]
            >>> row["targets"].tolist(), row["targets_segment_ids"].tolist()
            ([1, 2, 3, 0], [1, 2, 2, 0])
            >>> row = from_source([np.array([5, 6, 7]), np.array([8, 9])]).pack(4, targets="shift")[0]
            >>> row["inputs"].tolist(), row["targets"].tolist(), row["loss_mask"].tolist()
            ([5, 6, 8, 0], [6, 7, 9, 0], [True, True, True, False])
            >>> bond = {"nodes": np.ones((2, 3)), "senders": np.array([0]), "receivers": np.array([1])}
            >>> budgets = {"nodes": 5, ("senders", "receivers"): 4}
            >>> offsets = {"senders": "nodes", "receivers": "nodes"}
            >>> row = from_source([bond, bond]).pack(budgets, method="best_fit", offsets=offsets)[0]
            >>> row["nodes"].shape, row["senders"].tolist(), row["receivers"].tolist()
            ((5, 3), [0, 2, 0, 0], [1, 3, 0, 0])
        """
        from loadax.core.casting import fill_values
        from loadax.packing.documents import check_documents
        from loadax.packing.pack import pack
        from loadax.packing.pack_options import pack_options
        from loadax.packing.packed_rows import Filling
        from loadax.plan.pack import PACK_VERSION
        from loadax.row_index.build import scan_options

        optional_flag("progress", progress)
        remedy = (
            "None, 'shift' for rows of inputs and targets, or 'given' if documents "
            "bring shifted targets"
        )
        choice("targets", targets, (None, "shift", "given"), remedy)
        shift = targets == "shift"
        options = pack_options(
            seq_len,
            method,
            long,
            window,
            align,
            most_documents,
            bos,
            shift,
            offsets,
            add,
            missing,
        )
        filling = Filling(
            fill_values(value),
            None if bos is None else fill_values(bos, "bos"),
            targets == "given",
        )
        if self.is_stream:
            from loadax.packing.pack_stream import pack_stream
            from loadax.plan.stream import StreamOrder, lane_verbs

            why = "lengths that are kept, but a stream is packed as it is read"
            refuse_given(why, index=index, key=key, executor=executor)
            if window is None:
                options = options._replace(window=0)
            stream, verb = pack_stream(self.reader, options, filling)
            verbs = lane_verbs(self.verbs, self._described)
            return Dataset(stream, StreamOrder(stream.lanes, (*verbs, verb)))
        check_documents(self.reader, self.order)
        index_key(key, index, "the maps before pack() change")
        scan = scan_options(index, None, executor, progress, key)
        make = partial(pack, self.reader, self.order, options, filling, scan)
        if index is not None:  # also for later runs
            return Dataset(make())
        decisive = "pack", PACK_VERSION, *options.decisive, *filling
        # its source and its order are made when they are first needed
        planned_later = object.__new__(Dataset)
        vars(planned_later).update(
            maps=(), _make=make, _made_of=(self.reader, self.order, decisive)
        )
        return planned_later

    def to_stream(self, lanes: int = _LANES) -> "Dataset":
        """Makes a stream of the rows: a fixed number of lanes, each of which reads its share of every epoch's order.

        Lane k of n serves the positions k, k + n, k + 2n, … of each epoch, so the first steps have the rows that the
        dataset's have, if lanes divide the batch size. Within a step, rows are sorted by their lanes with the bits
        reversed, as after `shuffle(block=, lanes=)`: of 4 lanes, by 0, 2, 1, 3.
        What it is for is `pack`, which then packs documents as they are read, from the first one on, and each epoch in
        another way, where the order before it changes. A lane continues at any of its rows: a run resumes without
        reading what it has read, on any number of processes. Random maps get the same random numbers as without
        `to_stream`.

        As for all streams, there is no `len`, `loader[step]`, `rows` or `find`, a lane that has ended begins its next
        epoch on its own (see `from_stream`), and worker processes are refused. `on_error` applies to maps after
        `to_stream`.

        Args:
            lanes: Number of lanes. It is part of the order. Best a divisor of the batch size, and a multiple of the
                number of processes. After `shuffle(seed, block=, lanes=)` pass the same number, so that every lane
                reads its own chunks.

        Raises:
            ArgumentError: If there are more lanes than rows, or the dataset has no length before a `Dataloader` has it.
            StreamError: If it is a stream.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, from_source
            >>> documents = from_source([np.full(length, length) for length in range(1, 100)])
            >>> packed = documents.shuffle(seed=0).to_stream(lanes=8).pack(16)
            >>> next(iter(Dataloader(packed, batch_size=16)))["tokens"].shape
            (16, 16)
        """
        from loadax.composition.dataset_lanes import DatasetLanes
        from loadax.plan.stream import VERSION, LaneVerb, StreamOrder, lane_verbs
        from loadax.sources.stream.source import Origin, StreamSource

        self._check_random_access(
            "to_stream()", "leave it out, since this is a stream already"
        )
        lanes = integer("lanes", lanes, 1)
        if lanes > (rows := self.order.size):
            if rows:
                remedy = f"pass lanes={rows} or fewer"
            else:
                remedy = "check its source or slice"
            raise ArgumentError(
                f"lanes={lanes}: some would have none of the "
                f"{count_text(rows, 'row')}; {remedy}"
            )
        below = self.reader.traits
        origin = Origin(repr(self.source), "to_stream(lanes=…)")
        source = StreamSource(
            DatasetLanes(self.reader, self.order), lanes, None, origin, below
        )
        verb = LaneVerb(
            f"to_stream(lanes={lanes})",
            ["to_stream", lanes, VERSION, *self.source.describe()],
        )
        return Dataset(
            source,
            StreamOrder(lanes, (*lane_verbs(self.verbs, self._described), verb)),
        )

    def cache(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | None = None,
        ragged: bool | None = None,
        chunk_rows: int | None = None,
        shard_rows: int | None = None,
        compression: str | None = "zstd",
        overwrite: bool = False,
        executor: Engine | None = None,
        progress: bool | None = None,
    ) -> "Dataset":
        """Writes all mapped rows to a zarr store once, and reads them from it from then on.

        An unfinished store is continued; a store of other data or other maps is an error. Processes that share a local
        folder write it together, each part once, such as those of a JAX run. In such a run, a process whose folder is
        another one writes all rows for itself, which is logged. Shuffle and apply random maps afterwards.
        If a store of ragged rows is finished, no row is mapped, and if one of packs without `index=` is, `pack` reads
        no document.

        Rows may be ragged, such as the tokens of texts; see `write_zarr`. Their lengths are stored too, so `pack` after
        it reads nothing to plan: `texts.map(tokenize).cache("tokens").pack(2048)` tokenizes each text once.

        Args:
            path: Folder or URL.
            key: Identifier of all functions before `cache`; change it when they change. Needed for functions that use
                objects whose changes can't be detected. None: their code and what it uses identify them: closure
                values, globals, tokenizers, and what they reach in modules of yours; installed packages by version.
            ragged: As in `write_zarr`.
            chunk_rows: As in `write_zarr`.
            shard_rows: As in `write_zarr`.
            compression: As in `write_zarr`.
            overwrite: Whether to rewrite a local store, such as after a change of a map; see `write_zarr`.
            executor: As in `write_zarr`.
            progress: Whether to show a progress bar. None: if stderr is a terminal.

        Raises:
            ArgumentError: If the order changes every epoch or a map is random, so the store could not repeat it; or if
                `path` contains anything else.
            LeafError: If a row has another form than those of the sample. Names the row and the leaf.

        Examples:
            >>> import numpy as np, tempfile
            >>> from loadax import from_source
            >>> texts = from_source(["to be", "or not", "to be or not to be"])
            >>> tokens = texts.map(lambda text: np.frombuffer(text.encode(), np.uint8)).cache(tempfile.mkdtemp())
            >>> tokens[0], len(tokens.pack(8))
            (array([116, 111,  32,  98, 101], dtype=uint8), 4)
        """
        from loadax.writing.cache import Cache

        sizes = chunk_rows, shard_rows, compression
        cache = Cache(path, key, ragged, sizes, overwrite, executor, progress)
        if self._made_of is None:
            self._check_random_access("cache()")
            rows = cache.kept(self.reader, self.order)
        else:
            rows = cache.kept(*self._made_of)
        if rows is None:
            rows = cache.written(self.reader, self.order)
        return Dataset(rows)

    @property
    def order_facts(self) -> list[Any]:
        """The facts that determine examples and their order, as JSON: lengths, verbs, seeds, element spec.

        Saved states depend on them. Contents, paths and functions are not included.
        """
        return [
            ORDER_VERSION,
            self.order.describe(),
            self.reader.describe(),
            describe_spec(self.spec),
        ]

    def repeat(self, times: int = _NEEDED) -> "Dataset":
        """Concatenates `times` epochs of this dataset into one, each in its own order."""
        from loadax.plan.repeat import Repeated

        remedy = (
            "an int; to repeat endlessly, pass num_epochs=None to the Dataloader"
            if times is None
            else None
        )
        times = integer("times", times, 1, remedy=remedy)
        if times > 1 and len(self) * times > MOST_POSITIONS:
            endless = f"{count_text(len(self), 'row')} would become more than 2**62"
            if len(self) == MOST_POSITIONS:
                endless = "the dataset never ends"
            raise ArgumentError(
                f"times={times}: {endless}; leave repeat() out and pass num_epochs= "
                "to the Dataloader"
            )
        return self._with(Repeated(self.order, times))

    @overload
    def split(
        self,
        fraction: int | Sequence[int],
        seed: int = 0,
        *,
        contiguous: bool = False,
        gap: int = 0,
        by: Any = None,
        allow_shared_rows: bool = False,
        index: str | os.PathLike[str] | None = None,
    ) -> tuple["Dataset", ...]: ...

    @overload
    def split(
        self,
        fraction: float,
        seed: int = 0,
        *,
        contiguous: bool = False,
        gap: int = 0,
        by: Any = None,
        allow_shared_rows: bool = False,
        index: str | os.PathLike[str] | None = None,
    ) -> tuple["Dataset", "Dataset"]: ...

    @explain_arguments
    def split(
        self,
        fraction: float | Sequence[int],
        seed: int = 0,
        *,
        contiguous: bool = False,
        gap: int = 0,
        by: Any = None,
        allow_shared_rows: bool = False,
        index: str | os.PathLike[str] | None = None,
    ) -> tuple["Dataset", ...]:
        """Splits the dataset into parts that share no row: at random, or into runs of rows.

        At random, the part of a row depends on its number, `seed`, and the number of `split` calls before this one in
        the chain: it is the same before and after `shuffle`. With a fraction, it never changes when rows are appended,
        and sizes are approximate. With counts, sizes are exact, and each appended row moves few others to another part.
        Keeps a list of the rows of each part (about a byte per row).

        With `contiguous`, the first part has the first rows, in the order before any shuffle, and so on: for series and
        videos, whose neighbouring rows are alike, and of whose parts `windows` are made. It keeps no list.

        Rows that are made of the same data can't be split: of windows that overlap, chunks of a document or packs that
        it continues in, nearly every one would have a neighbour in the other part. Split before such verbs.

        Args:
            fraction: Fraction of the rows in the first of two parts, such as 0.9. Or exact counts, such as
                `[800, 100, 100]`, which add up to the number of rows. Or a number of parts of equal size, such as 5:
                the first parts have one row more if it does not divide the number of rows.
            seed: Seed of the split, any int.
            contiguous: Whether parts are runs of consecutive rows, with exact sizes. It draws nothing, so it has no
                seed.
            gap: Number of rows between two contiguous parts that are in none of them; they don't count in fractions.
                Windows of `k` rows at each row that were made before share no row if it is `k - 1`.
            by: Groups of rows that stay together, such as episodes, patients or files: offsets or the name of a leaf,
                as `windows(within=)` takes them, or a function of an example, as `split_by` does. `fraction` and `gap`
                count groups. Rows of a group that a leaf names need not be together; if they are, or by offsets, 16
                bytes per group are kept, nothing per row, and no window of a part leaves a group.
            allow_shared_rows: Whether parts may be made of the same data, as before there was this argument.
            index: Folder that keeps the groups that `by` names for later runs, as in `filter`. A run of several
                processes needs it.

        Raises:
            ArgumentError: If `fraction` is none of these, the counts don't add up, a part would be empty, the set of
                rows changes every epoch, or parts would share rows of the data.

        Warns:
            UserWarning: If a fraction leaves a part without rows.

        Examples:
            >>> import numpy as np
            >>> from loadax import concat, from_arrays
            >>> data = from_arrays(np.arange(1000))
            >>> [len(part) for part in data.split([800, 100, 100])]
            [800, 100, 100]
            >>> folds = data.split(5)
            >>> train, test = concat(folds[1:]), folds[0]
            >>> len(train), len(test)
            (800, 200)
            >>> past, future = data.split(0.8, contiguous=True, gap=10)
            >>> int(past[-1]), int(future[0])
            (791, 802)
            >>> past.windows(24)[0].shape
            (24,)
        """
        from loadax.plan.split import (
            SPLITS,
            checked_fraction,
            counts_of,
            split as split_order,
            split_counts,
            split_spans,
            warn_of_percentage,
        )

        self._check_random_access("split()")
        warn_of_percentage(fraction)
        seed = integer("seed", seed, most=None)
        gap = integer("gap", gap, 0)
        verb = f"split({shown(fraction)})"
        shared = flag("allow_shared_rows", allow_shared_rows)
        if by is not None:
            from loadax.row_index.group_verbs import split_together

            runs = flag("contiguous", contiguous)
            given: Any = {"contiguous": runs, "gap": gap, "index": index}
            orders = split_together(
                self.order, self.reader, by, fraction, seed, **given
            )
            if orders is None:
                return self.split_by(
                    by, fraction, seed, allow_shared_rows=shared, **given
                )
            parts = self._parts(orders)
            return self._kept_apart("split(by=)", parts, shared, by_position=True)
        if flag("contiguous", contiguous):
            if seed:
                raise ArgumentError(
                    f"seed={seed}: a contiguous split draws nothing; leave seed= out"
                )
            parts = self._parts(split_spans(self.order, fraction, gap))
            return self._kept_apart(verb, parts, shared, gap)
        if gap:
            raise ArgumentError(
                f"gap={gap} is for runs of rows; pass contiguous=True as well"
            )
        num_rows = self.reader.num_rows
        if (counts := counts_of(self.order, num_rows, fraction)) is not None:
            parts = self._parts(split_counts(self.order, num_rows, counts, seed))
            return self._kept_apart(verb, parts, shared)
        parts = self._parts(
            split_order(self.order, checked_fraction(fraction, SPLITS), seed)
        )
        for which, part in zip(("first", "second"), parts, strict=True):
            if len(self) > 1 and not len(part):
                warnings.warn(
                    f"split({fraction}, seed={seed}) of "
                    f"{count_text(len(self), 'row')} leaves none for the {which} "
                    "part, since each row is drawn independently; pass another "
                    f"seed, or counts: split([{len(self) - 1}, 1])",
                    UserWarning,
                    stacklevel=3,
                )
        return self._kept_apart(verb, parts, shared)

    def _parts(self, orders: Sequence[Order]) -> tuple["Dataset", ...]:
        return tuple(map(self._with, orders))

    def _kept_apart(
        self,
        verb: str,
        parts: tuple["Dataset", ...],
        shared: bool,
        gap: int | None = None,
        by_position: bool = False,
    ) -> tuple["Dataset", ...]:
        """Parts of a split, which must not share rows of the data unless `shared`; `gap`: of a contiguous one."""
        repeats = (by_position or gap is not None) and self.order.repeats
        if not shared and (self.reader.traits.shared_by or repeats):
            from loadax.composition.shared_rows import Gap, check_parts

            if gap is None:
                between = None
            else:
                between = Gap(gap, self.order)
            check_parts(verb, self.source, [part.order for part in parts], between)
        return parts

    def filter(
        self,
        fn: Callable[..., Any] | FilterTransform,
        key: str | None = None,
        *,
        columns: Sequence[str] | str | None = None,
        index: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        executor: Engine | None = None,
        progress: bool | None = None,
    ) -> "Dataset":
        """Keeps the rows for which `fn(example)` is True, with the maps so far applied.

        Every row is checked once, now, by several threads, and a list of the kept rows stays in memory (1 to 2 bytes
        per row). So the length is exact, and any position can be read. The result is the same before and after
        `shuffle`.

        Args:
            fn: Function of one example, which it must not change. Returns a bool. Or an object with such a method
                `filter`, such as a `grain.transforms.Filter`.
            key: Identifier of `fn` in the index, which it needs; change it when `fn` changes. None: `fn`'s code,
                closure values and globals identify it.
            columns: Names of leaves, as in `keep`: `fn` gets a dict of these, and only these are read of
                arrays and tables such as zarr groups, Parquet files and Hugging Face datasets. With maps before it, and
                of other sources, examples are read whole. None: all leaves.
            index: Folder that keeps the list for later runs, another one for each filter. An index of other data or
                another `fn` is rebuilt, which is logged. While rows are checked, it keeps what is finished: after an
                interruption, the same call goes on from there. Processes that share it check rows together, each once;
                a run of several processes needs such a folder.
            workers: Number of threads. None: 4, or more if the source waits for a network.
            executor: What checks rows instead of threads of this process: an instance of
                `concurrent.futures.Executor`, such as a process pool or Dask's `client.get_executor()`, or a function
                that makes one. It needs `index`, in a folder that its workers share. None: threads.
            progress: Whether to show a progress bar. None: if stderr is a terminal.

        Raises:
            ArgumentError: If no row is kept, a map before it is random, the set of rows changes every epoch, `key` or
                `executor` is given without `index`, or `columns` has a name that no leaf has; or if there is no `index`
                in a run of several processes.
            WorkerError: If the executor loses tasks again and again.
            LeafTypeError: If `fn` returns anything but a bool. Names the row.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> even = from_arrays(np.arange(10)).filter(lambda number: number % 2 == 0)
            >>> len(even), [int(number) for number in even]
            (5, [0, 2, 4, 6, 8])
        """
        from loadax.row_index.build import scan_options
        from loadax.row_index.verbs import filter_rows
        from loadax.sources.libraries.grain_transforms import filter_function

        self._check_random_access("filter()")
        options = scan_options(index, workers, executor, progress)
        checked = function(
            "fn", filter_function(fn), "a function of one example", "example"
        )
        if columns is None:
            seen = self
        else:
            seen = self._select_leaves("keep", (columns,), "columns")
        return self._with(filter_rows(self.order, seen.reader, checked, key, options))

    def exclude(self, rows: Any) -> "Dataset":
        """Drops the listed rows: duplicates, quarantined rows, takedowns. Keeps that list in memory (8 bytes per row).

        Args:
            rows: Row numbers of the source (as `Dataloader.rows` returns them), in any order.

        Raises:
            ArgumentError: If it is not such a list, it contains all rows, or the set of rows changes every epoch.
            RowIndexError: If a row is out of range.
        """
        from loadax.row_index.lists import leave_out

        return self._with(leave_out(self.order, self.reader.num_rows, rows))

    def statistics(
        self,
        *leaves: str,
        per: Literal["column", "leaf"] = "column",
        index: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        executor: Engine | None = None,
        progress: bool | None = None,
    ) -> "dict[str, Statistics]":
        """Count, mean, standard deviation, least and greatest value, and quantiles of leaves, to normalise them.

        Reads each row of this dataset once, now, whatever their order, with the maps so far applied: call it on the
        training part alone. A row counts once, however often `repeat` or `select` have it. Padding counts: call it
        before `pad` and `pack`. Sums are those of float64, merged by Chan's formulas.

        Args:
            leaves: Names of leaves; see `rename`. Only these are read of arrays and tables. None: all real numbers.
            per: What has statistics of its own: each "column", an index of the last dimension, such as the channels of
                an image or the entries of a state; or the "leaf", as images of one channel and tokens need it.
            index: Folder that keeps the result for later runs and for other processes of the run; see `filter`.
            workers: Number of threads; see `filter`.
            executor: What reads rows instead of threads, as in `filter`.
            progress: Whether to show a progress bar. None: if stderr is a terminal.

        Returns:
            Statistics by the name of each leaf.

        Raises:
            ArgumentError: If there are no rows or leaves of real numbers, a map before it is random, the set of rows
                changes every epoch, or an option can't be used; see `filter`.
            LeafTypeError: If rows differ in the number of columns. Names the row.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> data = from_arrays({"state": np.array([[1.0, 0.0], [3.0, 0.0]], np.float32)})
            >>> state = data.statistics("state")["state"]
            >>> state.mean, state.quantile(0.5)
            (array([2., 0.]), array([2., 0.]))
            >>> std = np.maximum(state.std, 1e-6)
            >>> data.map(lambda row: {"state": (row["state"] - state.mean) / std})[1]
            {'state': array([1., 0.])}
        """
        from loadax.row_index.build import scan_options
        from loadax.row_index.statistics import statistics

        self._check_random_access("statistics()")
        options = scan_options(index, workers, executor, progress)
        seen = self
        if leaves:
            seen = self._select_leaves("keep", leaves, "leaves")
        return statistics(self.order, seen.reader, bool(leaves), per, options)

    def split_by(
        self,
        key: str | Callable[..., Any],
        fraction: float | Sequence[int],
        seed: int = 0,
        *,
        contiguous: bool = False,
        gap: int = 0,
        allow_shared_rows: bool = False,
        index: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        executor: Engine | None = None,
        progress: bool | None = None,
    ) -> tuple["Dataset", ...]:
        """Splits the dataset into parts that share no group of rows, such as a user or a patient.

        With a fraction, the first of two parts has about that share of the groups, the second the rest. The side of a
        group depends on its key, `seed`, and the number of `split_by` calls before this one in the chain: it does not
        change when rows are appended. A number of parts makes as many folds, each group in one of them, and counts
        make parts of exactly so many groups; each new group moves few others to another part. Every row's key is read
        once, now.

        With `contiguous`, the first part has the groups whose first rows come first, such as the days of the past;
        `windows` can be made of parts whose rows are consecutive.

        Args:
            key: Name of the leaf that identifies a row's group, or a function of one example that returns an int, a str
                or bytes.
            fraction: Fraction of the groups (not of the rows) in the first of two parts, between 0 and 1. Or a number
                of parts with equally many groups, such as 5: the first parts have one more if it does not divide their
                number. Or exact counts of groups, such as `[80, 10, 10]`.
            seed: Seed of the split.
            contiguous: Whether parts are runs of groups, as they begin in the order before any shuffle. It draws
                nothing, so it has no seed.
            gap: Number of groups between two contiguous parts that are in none of them.
            allow_shared_rows: As in `split`.
            index: As in `filter`. One index serves any fraction and seed.
            workers: As in `filter`.
            executor: As in `filter`.
            progress: As in `filter`.

        Raises:
            ArgumentError: If a value can't be used, a map before it is random, the set of rows changes every epoch, or
                parts would share rows of the data: windows that overlap, and have other groups.
            LeafTypeError: If a row's key has another type. Names the row.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> visits = from_arrays({"patient": np.arange(12) // 3, "x": np.arange(12)})
            >>> train, test = visits.split_by("patient", 0.5)
            >>> set(train.read(range(len(train)))["patient"]) & set(test.read(range(len(test)))["patient"])
            set()
            >>> folds = visits.split_by("patient", 4)
            >>> [fold.read(range(len(fold)))["patient"].tolist() for fold in folds]
            [[1, 1, 1], [3, 3, 3], [0, 0, 0], [2, 2, 2]]
            >>> first, last = visits.split_by("patient", 0.5, contiguous=True)
            >>> last.read(range(len(last)))["patient"].tolist()
            [2, 2, 2, 3, 3, 3]
        """
        from loadax.plan.split import checked_group_split
        from loadax.row_index.build import scan_options
        from loadax.row_index.verbs import split_groups

        self._check_random_access("split_by()")
        options = scan_options(index, workers, executor, progress)
        seed = integer("seed", seed, most=None)
        gap = integer("gap", gap, 0)
        shared = flag("allow_shared_rows", allow_shared_rows)
        runs = flag("contiguous", contiguous)
        share, between = checked_group_split(fraction, seed, runs, gap)
        orders = split_groups(
            self.order, self.reader, key, share, seed, options, between
        )
        return self._kept_apart("split_by()", self._parts(orders), shared)

    @explain_arguments
    def map(
        self,
        fn: Callable[..., Tree] | MapTransform | RandomMapTransform,
        rng: bool = False,
        seed: int = DEFAULT_SEED,
        spec: Tree | None = None,
        with_index: bool = False,
        with_epoch: bool = False,
    ) -> "Dataset":
        """Applies `fn(example)` to every row, or `fn(example, rng)` with the row's own `numpy.random.Generator`.

        On all threads `fn` sees the context variables (also of `np.errstate` and `decimal`) and JAX's settings, such as
        `jax.default_device`, of the call that begins to read: `iter(loader)`, `loader[step]`, `filter`. Worker
        processes have the defaults, except for context variables of a script.

        Args:
            fn: Function of one example (arrays without a row dimension, which it may change) that returns a pytree. The
                last map must return the same shapes and dtypes for every row; earlier maps need not. Or an object with
                such a method `map`, or `random_map` with a generator: a `grain.transforms.Map` or `RandomMap`.
            rng: Whether to pass a generator, which depends only on (seed, index in the chain of maps, epoch, row).
            seed: Seed of the generators. If it is not given, it is 0; in parts of `mix`, `zip` and `concat`, and in
                phases of `chain`, a seed of the part or phase, so that equal rows get other random numbers there. A
                seed that is given stays what it is.
            spec: Spec of the result: a pytree of objects with shape and dtype. None: inferred by mapping one row.
            with_index: Whether to pass the row number, an int: `fn(example, row)`, or `fn(example, row, rng)`. It is
                the row of the source, as `Dataloader.rows` tells it, and not the position, which a shuffle or a slice
                changes: the same record has the same number in every epoch.
            with_epoch: Whether to pass the epoch, an int from 0, after the row: `fn(example, epoch)`, or
                `fn(example, row, epoch, rng)`, such as to choose another caption in each. In a mixture it is that of
                the row's dataset, in `repeat` each time is one, and with `sample` each draw: it is then
                `epoch * size + position`, so divide it by `size`. Rows then differ between epochs, as with `rng`:
                `filter`, `pack`, `cache`, `split_by` and `keep_on_device` refuse such a map before them. A stream has
                no epochs for a map; map before `to_stream`.

        Raises:
            ArgumentError: If `fn` can't be called with what it gets, or `seed` is given without `rng`.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> data = from_arrays(np.array([1.5, 2.5, 3.5]))
            >>> names = ["a.png", "b.png", "c.png"]
            >>> data[::-1].map(lambda value, row: {"value": value, "size": len(names[row])}, with_index=True)[0]
            {'value': np.float64(3.5), 'size': np.int64(5)}
        """
        from loadax.sources.libraries.grain_transforms import map_function

        fn, rng = map_function(fn, flag("rng", rng, _RNG_HINT))
        with_index = flag("with_index", with_index)
        with_epoch = flag("with_epoch", with_epoch)
        gets = "an example", "its row", "its epoch", "a generator"
        checked = checked_function(fn, gets, with_index, with_epoch, rng)
        index = self.reader.traits.num_maps
        spec = normalise_spec(spec)
        number, stream = checked_seed(seed, rng)
        return self._mapped(
            Map(checked, rng, number, index, spec, with_index, with_epoch, stream)
        )

    def map_batch(
        self,
        fn: Callable[..., Tree],
        rng: bool = False,
        seed: int = DEFAULT_SEED,
        spec: Tree | None = None,
        elementwise: bool = False,
        with_index: bool = False,
        with_epoch: bool = False,
    ) -> "Dataset":
        """Applies `fn(batch)` to many rows at once: some rows of some step, not necessarily a whole batch.

        `fn` must treat each row independently. Operations across rows belong in the jitted step.

        Args:
            fn: Function of a pytree of arrays, rows first, that returns one with as many rows.
            rng: Whether to pass a list of generators, one per row.
            seed: Seed of the generators; see `map`.
            spec: Spec of the result for one row. None: inferred by mapping one row.
            elementwise: Promise that each element depends only on the same element of the same leaf. Then `fn` may be
                called with some columns of the rows, and only the columns of this process's devices are read.
            with_index: Whether to pass the row numbers as int64[n]: `fn(batch, rows)`, or `fn(batch, rows, rngs)`; see
                `map`.
            with_epoch: Whether to pass the rows' epochs as int64[n] after the row numbers; see `map`.

        Raises:
            ArgumentError: If `fn` can't be called with what it gets, `seed` is given without `rng`, or `elementwise`
                with `rng`, `with_index` or `with_epoch`.
        """
        from loadax.sources.libraries.grain_transforms import refuse_transform

        rng = flag("rng", rng, _RNG_HINT)
        elementwise = flag("elementwise", elementwise)
        with_index = flag("with_index", with_index)
        with_epoch = flag("with_epoch", with_epoch)
        if elementwise and (rng or with_index or with_epoch):
            if rng:
                other = "rng"
            elif with_index:
                other = "with_index"
            else:
                other = "with_epoch"
            raise ArgumentError(
                f"elementwise=True with {other}=True: such a function sees elements "
                "alone; choose one"
            )
        refuse_transform(fn, "map_batch")
        gets = "a batch", "their rows", "their epochs", "a list of generators"
        checked = checked_function(fn, gets, with_index, with_epoch, rng)
        number, stream = checked_seed(seed, rng)
        index = self.reader.traits.num_maps
        spec = normalise_spec(spec)
        return self._mapped(
            BatchMap(
                checked,
                rng,
                number,
                index,
                spec,
                with_index,
                with_epoch,
                stream,
                elementwise,
            )
        )

    def flat_map(
        self,
        fn: Callable[..., Sequence[Tree]],
        fan_out: int | None = None,
        rng: bool = False,
        seed: int = DEFAULT_SEED,
        with_index: bool = False,
        with_epoch: bool = False,
        *,
        counts: Any = None,
        index: str | os.PathLike[str] | None = None,
        key: str | None = None,
        executor: Engine | None = None,
        progress: bool | None = None,
    ) -> "Dataset":
        """Makes several examples of every row: `fan_out` of each, or as many as `counts` says.

        Example p is entry `p % fan_out` of what `fn` returns for the example at position `p // fan_out`; with `counts`,
        the examples of a position follow those of the position before. So any example has random access, and the length
        is exact. Consecutive examples of a row read and map it once, as far as they are in one read (a batch's rows on
        one host, or a part of them that a worker reads): a shuffle before `flat_map` keeps them together, and one after
        it separates them, so that each reads its row. Entries may be views of the row: only those that are read are
        copied.

        With `counts`, the rows of later verbs are the examples, in this order, and `Dataloader.rows` numbers them. A
        `split` or `split_by` before it keeps the examples of a row together; after it, parts that share a row are
        refused. The sums of the counts stay in memory (8 bytes per row).

        Args:
            fn: Function of one example, as in `map`, that returns a list of examples.
            fan_out: Number of examples of every row. Either this or `counts`.
            rng: As in `map`.
            seed: As in `map`.
            with_index: As in `map`.
            with_epoch: As in `map`.
            counts: Number of examples of each row, 0 or more: int64[len(self)], or a function of one example (with the
                maps so far applied) that returns an int. A function is called once for every row, now.
            index: Folder that keeps the counts of a function for later runs; see `filter`.
            key: Identifier of the function `counts` in the index, as in `filter`.
            executor: What calls the function `counts` instead of threads, as in `filter`.
            progress: Whether to show a progress bar meanwhile. None: if stderr is a terminal.

        Raises:
            ArgumentError: If a value can't be used; with `counts`, if the order changes every epoch, or `counts` is a
                function and a map before it is random.
            LeafTypeError: If a function `counts` does not return an int of 0 or more. Names the row.
            LeafError: On reading a row of which `fn` makes more or fewer examples. Names the row.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays, from_source
            >>> days = from_arrays(np.arange(12).reshape(3, 4))
            >>> halves = days.flat_map(lambda day: [day[:2], day[2:]], fan_out=2)
            >>> halves.read([0, 1, 5]).tolist()
            [[0, 1], [2, 3], [10, 11]]

            Overlapping chunks of recordings, of 4 samples every 2:

            >>> recordings = from_source([np.arange(9), np.arange(3), np.arange(20, 26)])
            >>> chunks = recordings.flat_map(
            ...     lambda audio: [audio[start : start + 4] for start in range(0, len(audio) - 3, 2)],
            ...     counts=lambda audio: max(0, (len(audio) - 2) // 2),
            ... )
            >>> chunks.read(range(len(chunks))).tolist()
            [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [20, 21, 22, 23], [22, 23, 24, 25]]
        """
        self._check_random_access(
            "flat_map()", "make several examples of a row where the stream is opened"
        )
        if (fan_out is None) == (counts is None):
            what = (
                f"fan_out={shown(fan_out)} and counts={shown(counts)}: pass one of "
                "them: fan_out, how many examples fn"
            )
            raise ArgumentError(
                f"{what} makes of every row, or counts, how many of each row"
            )
        from loadax.composition.flat_mapped import FanOut, FlatMapSource
        from loadax.plan.flat_map import FlatMapped
        from loadax.row_index.build import scan_options
        from loadax.row_index.integers import flat_map_counts

        options = scan_options(index, None, executor, progress, key)
        # The lists are never stacked, so they need no spec of their own.
        lists = self.map(
            fn, rng, seed, ArraySpec((), np.dtype(object)), with_index, with_epoch
        )
        name = name_of(lists.maps[-1].function)
        if counts is not None:
            found = flat_map_counts(self.reader, self.order, counts, options)
            return Dataset(FlatMapSource(lists.reader, found, name))
        refuse_given("a function, which fan_out= is not", index=index, key=key)
        fan_out = integer(
            "fan_out",
            fan_out,
            1,
            remedy="the number of examples that fn makes of a row, 1 or more",
        )
        if len(self) * fan_out > MOST_POSITIONS:
            raise ArgumentError(
                f"fan_out={fan_out}: {count_text(len(self), 'row')} would become "
                "more than 2**62; cut it: ds.subset_per_epoch(range(n))"
            )
        source = FlatMapSource(
            lists.reader, FanOut(fan_out, len(self.source) * fan_out, [fan_out]), name
        )
        return Dataset(source, FlatMapped(self.order, fan_out, name))

    def group(
        self,
        budgets: int | Mapping[str, int],
        sizes: Any,
        method: Literal["best_fit", "first_fit"] = "best_fit",
        long: Literal["error", "drop"] = "error",
        window: int | None = None,
        most_rows: int | None = None,
        *,
        index: str | os.PathLike[str] | None = None,
        key: str | None = None,
        executor: Engine | None = None,
        progress: bool | None = None,
    ) -> "Dataset":
        """Groups rows so that the sizes of each group's rows add up to at most the budgets.

        An example is the list of the examples of a group, of any number, for a `map` that makes one of fixed shape of
        it: graphs that are batched and padded, patches of images, texts of a token budget. Every row is in one group.

        Groups are made once, of the rows in the order of epoch 0, by the planner of `pack`: rows are fitted from the
        largest to the smallest, groups are in the order of their first rows, and rows within a group keep their order.
        Only sizes are needed for that, so groups have random access, and read and map each of their rows once. Later
        verbs apply to groups: `shuffle` shuffles them, `split` splits them. Random maps before it see each row's own
        epoch and number. A row whose sizes are all 0 counts as one of size 1.

        Args:
            budgets: Largest sum of the sizes of a group's rows. Or a dict of them by name, such as
                `{"nodes": 512, "edges": 4096}`; a group keeps to all of them.
            sizes: Size of each row, 0 or more: a function of one example (with the maps so far applied) that returns an
                int, or a dict of ints with the names of the budgets. It is called once for every row, now. Or
                int64[len(self)], or a dict of such arrays by name, unless the order changes every epoch.
            method: "best_fit" puts a row into the fullest group with space for it, "first_fit" into the first one.
            long: What happens with rows larger than a budget: "error"; "drop": they are dropped.
            window: Number of consecutive rows that are grouped together. None: 1,048,576; 4,096 with budgets by name,
                where the time per row grows with it.
            most_rows: Largest number of rows of a group. None: no limit.
            index: Folder that keeps the sizes of a function, and the groups, for later runs; see `filter`.
            key: Identifier of the function `sizes` in the index, as in `filter`.
            executor: What calls the function `sizes` instead of threads, as in `filter`.
            progress: Whether to show a progress bar meanwhile. None: if stderr is a terminal.

        Raises:
            ArgumentError: If a value can't be used, a row is larger than a budget and `long` is "error", all rows are
                dropped, the set of rows changes every epoch, or `sizes` is a function and a map before it is random.
            LeafTypeError: If a function `sizes` returns anything else. Names the row.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_source
            >>> texts = from_source([np.array([5, 6, 7]), np.array([8, 9]), np.array([4]), np.array([3, 2])])
            >>> groups = texts.group(4, sizes=len)
            >>> [[row.tolist() for row in group] for group in groups]
            [[[5, 6, 7], [4]], [[8, 9], [3, 2]]]
            >>> groups.map(np.concatenate).read([0, 1]).tolist()
            [[5, 6, 7, 4], [8, 9, 3, 2]]
        """
        from loadax.packing.group import group, group_options
        from loadax.row_index.build import scan_options

        self._check_random_access(
            "group()",
            "group a dataset with random access; a stream of documents can be packed",
        )
        plan_options = group_options(budgets, method, long, window, most_rows)
        options = scan_options(index, None, executor, progress, key)
        return Dataset(group(self.reader, self.order, plan_options, sizes, options))

    def pad(
        self,
        lengths: int | Mapping[str, int],
        value: Any = 0,
        truncate: bool = False,
        side: Literal["left", "right"] = "right",
        add_lengths: bool = True,
    ) -> "Dataset":
        """Pads ragged leaves to a fixed length, and puts their lengths beside them. Other leaves stay as they are.

        Args:
            lengths: Length of each padded leaf by name, such as `{"tokens": 512}`; the leaf "tokens_length" (int32) is
                added. A leaf of a subtree is named by its keys joined by dots, as in `keep`: `{"meta.ids": 8}` adds
                "meta.ids_length". Or an int for examples that are bare arrays, which become dicts of "data" and
                "length". Padding is in the first dimension.
            value: Value of the padding. Or a dict of values by name, 0 for the others.
            truncate: Whether to truncate longer leaves, whose lengths then are those of the rest. Otherwise they are an
                error.
            side: Where padding is put, and entries are dropped: "right", at the end, or "left", at the start, so that
                the last entries stay and end the row, as prompts do for generation.
            add_lengths: Whether to add lengths. Without them, examples that are bare arrays stay so.

        Raises:
            ArgumentError: If a value can't be used, or `value` does not fit a leaf's dtype.
            LeafError: On reading a longer leaf, or one that is missing or not numeric. Names the row and the leaf.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_source
            >>> rows = [{"tokens": np.arange(3), "label": 0}, {"tokens": np.arange(5), "label": 1}]
            >>> padded = from_source(rows).pad({"tokens": 6}, value=-1)
            >>> padded.read([0, 1])["tokens"].tolist()
            [[0, 1, 2, -1, -1, -1], [0, 1, 2, 3, 4, -1]]
            >>> padded[0]["tokens_length"]
            np.int32(3)
            >>> left = from_source([np.arange(3), np.arange(5)]).pad(4, truncate=True, side="left", add_lengths=False)
            >>> left.read([0, 1]).tolist()
            [[0, 0, 1, 2], [1, 2, 3, 4]]
        """
        from loadax.padding import Pad, padding

        left = choice("side", side, ("left", "right")) == "left"
        pad = Pad(
            padding(lengths, value, truncate), left, flag("add_lengths", add_lengths)
        )
        if self.maps:
            padded = None
        else:
            padded = self.source.padded(pad)
        if padded:
            return Dataset(padded, self.order)
        return self._mapped(pad)

    def decode_images(
        self,
        leaf: str | None = None,
        size: tuple[int, int] | int | None = None,
        *,
        fit: Literal["crop", "stretch", "pad"] = "crop",
        crop: Any = None,
        quality: Literal["high", "fast"] = "high",
        damaged: Literal["error", "accept"] = "error",
    ) -> "Dataset":
        """Decodes the encoded images of a leaf to uint8[height, width, 3], as `from_images` does. Others stay.

        The leaf has the bytes of a JPEG, PNG, WebP or BMP file in each row: `bytes`, as columns of Parquet and members
        of tar files are, uint8[n], or a dict with a key "bytes", as Hugging Face stores images.

        Args:
            leaf: Name of the leaf, as in `keep`: "image", or "meta.image" for one of a subtree. None: examples are bare
                bytes, and become bare images.
            size: (height, width) that images are resized to, or one int for squares. None: their own sizes, which a map
                must make equal.
            fit: How to handle another aspect ratio; see `from_images`.
            crop: The part of each image to decode; see `from_images`. A `RandomCrop` makes rows differ between epochs,
                as a random map does.
            quality: "high" or "fast"; see `from_images`.
            damaged: What to do about a truncated or damaged JPEG; see `from_images`.

        Raises:
            ArgumentError: If an argument can't be used.
            UnsupportedError: If Pillow, simplejpeg or OpenCV is not installed.
            LeafError: On reading, if the leaf is missing or is not encoded, or images differ in size. Names the row.
            SourceError: On reading, if an image can't be decoded. Names the row and its file.

        Examples:
            >>> import io
            >>> from PIL import Image
            >>> from loadax import RandomCrop, from_source
            >>> file = io.BytesIO()
            >>> Image.new("RGB", (60, 40), "teal").save(file, "JPEG")
            >>> rows = from_source([{"image": file.getvalue(), "label": 3}])
            >>> rows.decode_images("image", size=32)[0]["image"].shape
            (32, 32, 3)
            >>> rows.decode_images("image", size=32, crop=RandomCrop()).read([0])["image"].shape
            (1, 32, 32, 3)
        """
        from loadax.sources.images.encoded import EncodedImages
        from loadax.sources.images.folder import open_rendering

        rendering = open_rendering(size, fit, quality, damaged, crop)
        return self._decoded(leaf, EncodedImages(rendering))

    def decode_audio(
        self,
        leaf: str | None = None,
        *,
        rate: int,
        seconds: float | None = None,
        channels: Literal["mono"] | int = "mono",
        clip: Literal["first", "middle", "random"] = "first",
        seed: int | None = None,
    ) -> "Dataset":
        """Decodes the encoded audio of a leaf to float32[samples], from -1 to 1. Other leaves stay.

        The leaf has the bytes of an audio file in each row, in one of the forms that `decode_images` takes. WAV, AIFF
        and FLAC files are read by seeking; others are decoded as a whole. M4A, AAC and the sound of videos need PyAV.

        Args:
            leaf: Name of the leaf, as in `keep`. None: examples are bare bytes, and become bare arrays.
            rate: Samples a second, to which files of other rates are converted.
            seconds: Length of a clip; zeros follow where a file is shorter. None: files are decoded whole, and are
                ragged: `pad` and `pack` make rows of one length of them, and tell how many samples are a file's.
            channels: "mono": the mean of a file's channels. Or the number of channels that all must have: arrays are
                then float32[samples, channels].
            clip: Which clip of a file: the first, the middle one, or a random one, drawn for each row in each epoch.
            seed: Seed of random clips. None: as the seed of a map that is not given.

        Raises:
            ArgumentError: If an argument can't be used.
            UnsupportedError: If soundfile is not installed.
            LeafError: On reading, if the leaf is missing or is not encoded, or whole files differ in length while they
                are stacked. Names the row.
            SourceError: On reading, if a file can't be decoded, is cut short, or has another number of channels. Names
                the row and its file.

        Examples:
            >>> import io
            >>> import numpy as np
            >>> import soundfile
            >>> from loadax import from_source
            >>> file = io.BytesIO()
            >>> soundfile.write(file, np.sin(np.arange(12000) / 10), 8000, format="FLAC")
            >>> rows = from_source([{"audio": file.getvalue(), "label": 3}])
            >>> rows.decode_audio("audio", rate=16000, seconds=0.5, clip="random")[0]["audio"].shape
            (8000,)
            >>> whole = rows.decode_audio("audio", rate=16000).pad({"audio": 32000})[0]
            >>> whole["audio"].shape, whole["audio_length"]
            ((32000,), np.int32(24000))
        """
        from loadax.sources.audio.encoded import encoded_audio

        decoder = encoded_audio(rate, seconds, channels, clip, seed)
        return self._decoded(leaf, decoder)

    def decode_video(
        self,
        leaf: str | None = None,
        *,
        frames: int,
        fps: float | None = None,
        size: tuple[int, int] | int | None = None,
        fit: Literal["crop", "stretch", "pad"] = "crop",
        clip: Literal["first", "middle", "random"] = "first",
        seed: int | None = None,
    ) -> "Dataset":
        """Decodes a clip of the encoded video of a leaf to uint8[frames, height, width, 3]. Other leaves stay.

        The leaf has the bytes of a video file in each row, in one of the forms that `decode_images` takes. Only groups
        of pictures in which the clip has frames are decoded.

        Args:
            leaf: Name of the leaf, as in `keep`. None: examples are bare bytes, and become bare clips.
            frames: Number of frames. In a shorter video, the last frame is repeated.
            fps: Frames a second, as in `from_video`. None: consecutive frames as they are stored.
            size: (height, width) that frames are resized to, or one int for squares. None: the size of each video,
                which must be equal.
            fit: How to handle another aspect ratio; see `from_images`.
            clip: Which clip of a video: the first, the middle one, or a random one, drawn for each row in each epoch.
            seed: Seed of random clips. None: as the seed of a map that is not given.

        Raises:
            ArgumentError: If an argument can't be used.
            UnsupportedError: If PyAV, or OpenCV for `size`, is not installed.
            LeafError: On reading, if the leaf is missing or is not encoded, or videos differ in size. Names the row.
            SourceError: On reading, if a video is cut short or a frame can't be decoded. Names the row and its file.

        Examples:
            >>> import io
            >>> import av
            >>> import numpy as np
            >>> from loadax import from_source
            >>> memory = io.BytesIO()
            >>> with av.open(memory, "w", format="mp4") as file:
            ...     stream = file.add_stream("mpeg4", rate=10)
            ...     stream.width = stream.height = 64
            ...     for number in range(12):
            ...         frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 20 * number, np.uint8))
            ...         file.mux(stream.encode(frame))
            ...     file.mux(stream.encode())
            >>> rows = from_source([{"video": memory.getvalue(), "label": 3}])
            >>> rows.decode_video("video", frames=4, fps=5, size=32, clip="random")[0]["video"].shape
            (4, 32, 32, 3)
        """
        from loadax.sources.video.encoded import encoded_video

        decoder = encoded_video(frames, fps, size, fit, clip, seed)
        return self._decoded(leaf, decoder)

    def _decoded(self, leaf: Any, decoder: Any) -> "Dataset":
        from loadax.decoding import decode

        return self._mapped(decode(leaf, decoder, self.reader.traits.num_maps))

    def rename(self, names: Mapping[str, str]) -> "Dataset":
        """Renames leaves: examples become dicts of the same leaves under other names.

        Names are keys joined by dots, and that of a subtree stands for all of its leaves: `{"meta.user": "user"}` moves
        a leaf of `meta` to the top, and `{"user": "meta.user"}` the other way. An example becomes a dict if it is a
        tuple (its keys are "0", "1" and so on) or a dataclass, as does a subtree of which a leaf is named; other
        subtrees stay as they are.

        It costs nothing where a source has columns, and it is no map: it copies nothing, and random maps after it get
        the same numbers as without it.

        Args:
            names: New name of each leaf to rename, by its old one.

        Raises:
            ArgumentError: If there is no such leaf, two leaves would get one name, or examples are single leaves. After
                maps, and of examples of a user's objects, it is a LeafError on reading, which names the row.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> data = from_arrays({"tokens": np.arange(4), "meta": {"user": np.arange(4), "day": np.arange(4)}})
            >>> data.rename({"tokens": "inputs", "meta.user": "user"})[2]
            {'inputs': np.int64(2), 'meta': {'day': np.int64(2)}, 'user': np.int64(2)}
        """
        return self._select_leaves("rename", names)

    def keep(self, *names: str) -> "Dataset":
        """Keeps these leaves alone. Arrays, zarr groups, npy files and tables then read no others.

        Behind `concat`, `zip`, `mix` and maps, that holds only where a `Dataloader` reads columns, without maps other
        than elementwise ones: call it on the parts, or before the maps.

        After a map it needs no rows of one shape: leaves that can't be in a batch, such as texts or ragged ones, are
        dropped before `pad`, `pack` or a `Dataloader` would refuse them.

        Args:
            names: Names of leaves or subtrees; see `rename`.

        Raises:
            ArgumentError: As `rename`.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> data = from_arrays({"tokens": np.arange(4), "meta": {"user": np.arange(4), "day": np.arange(4)}})
            >>> data.keep("tokens", "meta.user")[2]
            {'meta': {'user': np.int64(2)}, 'tokens': np.int64(2)}
        """
        return self._select_leaves("keep", names)

    def drop(self, *names: str) -> "Dataset":
        """Drops these leaves, and keeps the others; see `keep`.

        Args:
            names: Names of leaves or subtrees; see `rename`.

        Raises:
            ArgumentError: As `rename`; or if no leaf would be left.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> from_arrays({"tokens": np.arange(4), "meta": {"user": np.arange(4)}}).drop("meta")[2]
            {'tokens': np.int64(2)}
        """
        return self._select_leaves("drop", names)

    def _select_leaves(
        self,
        verb: Literal["rename", "keep", "drop"],
        names: Any,
        argument: str = "names",
    ) -> "Dataset":
        from loadax.core.leaf_selection import selection
        from loadax.sources.selection import keep_selected

        selected = selection(verb, names, argument)
        source = self.source
        kept = None
        if not (self.maps or self.is_stream):
            if source.spec is None:
                structure = source.structure
            else:
                structure = flatten_spec(self.reader.spec)[1]
            if structure is None:
                kept = None
            else:
                kept = keep_selected(source, structure, selected)
        if kept is None:
            return self._mapped(selected)
        return Dataset(kept, self.order)

    def _warn_of_chunks(self) -> None:
        rows = chunk_rows(self.source)
        fitting = self.source.traits.cached_chunks
        if (
            rows is None
            or rows < _MANY_ROWS
            or not len(self)
            or fitting * rows >= len(self.source)
        ):
            return
        largest = max(each.nbytes for each in flatten_spec(self.reader.specs[0])[0])
        if rows * largest <= _MANY_BYTES:
            return
        warnings.warn(
            f"shuffle(seed) of data whose chunks hold {count_text(rows, 'row')} "
            f"decodes up to {count_text(rows, 'row')} for each one used; "
            "shuffle(seed, block='chunks') decodes each once an epoch, or `loadax "
            "convert` writes the data in smaller chunks",
            UserWarning,
            stacklevel=4,
        )

    def _check_random_access(self, verb: str, *remedy: str) -> None:
        if self.is_stream:
            raise StreamError(verb, *remedy)

    @property
    def _described(self) -> list[Any]:
        """Each of `verbs` as JSON."""
        return [
            *self.order.describe(),
            *(transform.describe() for transform in self.maps),
        ]

    def _select(self, rows: Any, name: str) -> "Dataset":
        from loadax.row_index.lists import select

        return self._part(select(self.order, rows, name))

    def _part(self, part: Any) -> "Dataset":
        """A slice or a list of positions as a dataset, with the same rows in every epoch."""
        if not part.parent.varies:
            return self._with(part)
        from loadax.plan.fixed_part import fixed_part

        fixed = fixed_part(part)
        if fixed is not part and self.reader.traits.shared_by:
            from loadax.composition.shared_rows import check_rows_apart

            check_rows_apart(part, self.source)
        return self._with(fixed)

    def _with(self, order: Order) -> "Dataset":
        return Dataset(self.source, order, self.maps)

    def _mapped(self, transform: Transform) -> "Dataset":
        if transform.with_epoch and self.is_stream:
            raise StreamError(
                "with_epoch=True",
                "map before to_stream(), or in the lanes of from_stream()",
            )
        return Dataset(self.source, self.order, (*self.maps, transform))


def zipped(parts: Sequence[Dataset], structure: Structure, version: int) -> Dataset:
    """Datasets side by side; see `loadax.zip`.

    Args:
        parts: The datasets, in leaf order.
        structure: Structure of an example, whose leaves are the examples of the parts.
        version: Version of `zip`.
    """
    from loadax.composition.zipped import ZipPart, ZippedSource
    from loadax.plan.zip import zip_orders

    if any(part.is_stream for part in parts):
        raise StreamError("zip()")
    names = tuple(path or "the dataset" for path in structure.paths)
    order = zip_orders([part.order for part in parts], names)
    readers = readers_of_parts([part.reader for part in parts], version)
    zipped_parts = [
        ZipPart(*each)
        for each in zip(names, readers, (part.order for part in parts), strict=True)
    ]
    return Dataset(ZippedSource(zipped_parts, structure), order)
