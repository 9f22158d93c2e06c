"""Dataset: a frozen recipe of a source, an order and maps."""

import math
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from loadax.core.arguments import MOST_POSITIONS, choice, flag, function, integer, number, optional_flag, text
from loadax.core.arguments import path as checked_path
from loadax.core.fingerprint import fingerprint
from loadax.core.formatting import name_of
from loadax.core.habits import for_dataset
from loadax.core.spec import flatten_spec, leaf_arrays, normalise_spec
from loadax.core.tree import map_leaves
from loadax.errors import ArgumentError, RowIndexError
from loadax.plan.blocks import BlockShuffled
from loadax.plan.mix import Mixed
from loadax.plan.order import Repeated, Sequential, Shuffled, Sliced, check_fixed_rows, depth, depth_first
from loadax.plan.pack import Long, Method
from loadax.plan.split import split as split_order
from loadax.protocols import Integers, Order, Tree
from loadax.reader import Examples, Reader
from loadax.redaction import redact
from loadax.seeds import ORDER_VERSION
from loadax.sources.base import BaseSource
from loadax.sources.checks import chunk_starts
from loadax.sources.io.places import check_elsewhere
from loadax.transforms import BatchMap, Map, Transform, takes
from loadax.writing.identity import digest_of, identify, sample_size, spread

_LANES = 128
_OPEN_BYTES = 1 << 30  # what the windows of all lanes may hold by default, over all hosts
# Rows and bytes of a chunk of the largest leaf: above these, decoding a chunk for one row is worth a warning.
_MANY_ROWS, _MANY_BYTES = 4, 8 << 10
_MOST_VERBS = 100  # far fewer than Python has frames for: each is a call in a call
_NEEDED: Any = None  # where the error for a missing argument says more than Python would
_MOST_ROWS = 1 << 30  # of a block, blocks of a window, and lanes: so that their product can be counted
_RNG_HINT = "; the seed of its numbers is seed="
_SAMPLE = 64  # rows that tell what a cache was made from
_WINDOW = 4  # blocks a lane: with 128 lanes 512 blocks are open, about as many as a large batch has rows


@final
@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Data that can be read at any position of any epoch.

    Every verb returns a new dataset and leaves this one as it was.

    Verbs compose from left to right over positions: `ds[:k].shuffle(0)` shuffles a fixed subset, and
    `ds.shuffle(0)[:k]` is another subset each epoch. Maps commute with all of them.

    Examples:
        >>> import numpy as np
        >>> from loadax import from_arrays
        >>> data = from_arrays({"x": np.arange(6), "y": np.arange(6) ** 2})
        >>> data[2]
        {'x': np.int64(2), 'y': np.int64(4)}
        >>> data.shuffle(seed=0)[:3].read([0, 1, 2])["x"].shape
        (3,)
    """

    source: BaseSource
    order: Order
    maps: tuple[Transform, ...] = field(default=())

    def __len__(self) -> int:
        return self.order.size

    def __repr__(self) -> str:
        verbs = [*map(_verb, self.order.describe()), *(_map_verb(each) for each in self.maps)]
        rows = "step-scheduled" if self.order.by_step else len(self)
        return redact(f"Dataset({rows} rows of {self.source!r}{''.join(verbs)})")

    def __post_init__(self) -> None:
        if depth(self.order) > _MOST_VERBS:
            raise ArgumentError(
                f"this dataset is made by more than {_MOST_VERBS} verbs, each upon the one before; "
                "where a loop calls one, call it once: concat() with a list of all datasets, "
                "a slice from the first row to the last, exclude() with all rows"
            )

    if not TYPE_CHECKING:  # a type checker then sees a misspelt name

        def __getattr__(self, name: str) -> Any:
            hint = for_dataset(name)
            text = f"'Dataset' object has no attribute {name!r}" + (f": {hint}" if hint else "")
            raise AttributeError(text, name=name, obj=self)

    @cached_property
    def reader(self) -> Reader:
        """The source and the maps; `reader.spec` is what one example looks like."""
        zero = np.zeros(1, np.int64)
        # A mixture that is scheduled by step has no length yet, but rows.
        return Reader(
            self.source, self.maps, self.order.visits(zero, zero) if self.order.by_step or len(self) else None
        )

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
        return self.reader.read_visits(
            self.order.visits(
                np.full_like(where, integer("epoch", epoch, 0, MOST_POSITIONS // max(1, len(self)))), where
            )
        )

    def __getitem__(self, index: Any) -> Any:
        """`ds[i]`: the example at position i of epoch 0. `ds[a:b:c]`: a dataset of those positions."""
        if isinstance(index, slice):
            chosen = range(*index.indices(len(self)))
            return self._with(Sliced(self.order, chosen.start, chosen.step, len(chosen)))
        if isinstance(index, list | np.ndarray):
            raise ArgumentError("an index is an int or a slice; many positions at once are ds.read(positions)")
        position = integer("index", index)
        if not -len(self) <= position < len(self):
            raise RowIndexError(f"position {position} is not there: the dataset has {len(self)}")
        if self.reader.reads_examples:  # which need not be alike
            return self.reader.examples(self.order.visits(np.zeros(1, np.int64), np.array([position % len(self)])))[0]
        return map_leaves(lambda leaf: leaf[0], self.read([position % len(self)]))

    def __iter__(self) -> Iterator[Any]:
        """The examples of epoch 0, one by one. For looking at data: a `Dataloader` reads many at once."""
        return (self[position] for position in range(len(self)))

    def shuffle(
        self, seed: int = _NEEDED, block: int | str | None = None, window: int | None = None, lanes: int = _LANES
    ) -> "Dataset":
        """All positions in random order, another one each epoch; see `loadax.seeds.permute`.

        Args:
            seed: any int. Different (seed, epoch) pairs never share an order.
            block: rows that lie together and are read together: blocks are shuffled, then the rows of `window` blocks
                at a time, in each of `lanes`; see `loadax.plan.blocks`. "chunks": the rows that the source decodes
                together, so that each chunk is decoded once. None: every row by itself.
            window: how many blocks a lane mixes. None: 4, or fewer where chunks are so large that more than 1 GiB would
                be open. All of it is part of the order.
            lanes: among how many lanes the positions are dealt.

        Raises:
            ArgumentError: when a value can't be used, or the source has no chunks.

        Warns:
            UserWarning: when every row is shuffled by itself though the source decodes many together; says what that
                costs.
        """
        seed = integer(
            "seed", seed, most=None, remedy="an int, as in shuffle(seed=0): each epoch gets another order of it"
        )
        if any(isinstance(each, Mixed) for each in depth_first(self.order)):
            raise ArgumentError(
                "shuffle() behind mix() would break its proportions; shuffle the datasets before they are mixed: "
                "mix({name: ds.shuffle(seed)}, …)"
            )
        if block is None:
            if window is not None or lanes != _LANES:
                which = f"window={window}" if window is not None else f"lanes={lanes}"
                raise ArgumentError(f"{which} needs a block: how many rows lie together; pass block= as well")
            self._warn_of_chunks()
            return self._with(Shuffled(self.order, seed))
        chunk = self._chunk_rows() if isinstance(block, str) or window is None else None
        if isinstance(block, str):
            choice(
                "block", block, ["chunks"], "a number of rows, or 'chunks' for those that the source decodes together"
            )
            if chunk is None and _joins_chunks(self.source):
                raise ArgumentError(
                    f"block='chunks': {self.source!r} reads what is decoded in chunks, "
                    "but not every part does, or one is mapped before it is joined; "
                    "map behind concat(), shuffle the parts before it, or pass how many rows lie together: block=64"
                )
            if chunk is None:
                raise ArgumentError(
                    f"block='chunks': {self.source!r} decodes every row by itself, so a full shuffle costs no more: "
                    f"use shuffle(seed={seed})"
                )
            block = chunk
        if window is None:
            open_bytes = (
                integer("lanes", lanes, 1, _MOST_ROWS)
                * integer("block", block, 1, _MOST_ROWS)
                * self._source_row_bytes()
                if chunk is not None and len(self)
                else 0
            )
            window = max(1, min(_WINDOW, _OPEN_BYTES // max(1, open_bytes)))
        sizes = (
            integer("block", block, 1, _MOST_ROWS),
            integer("window", window, 1, _MOST_ROWS),
            integer("lanes", lanes, 1, _MOST_ROWS),
        )
        return self._with(BlockShuffled(self.order, seed, *sizes))

    def windows(self, length: int, stride: int = 1, lead: int | None = None, targets: int = 1) -> "Dataset":
        """Sliding windows over the rows as they lie.

        An example is `length` consecutive ones, stacked along a new first dimension.

        Windows of a slice stay within it: `ds[:800].windows(4)` and `ds[800:].windows(4)` share no row.

        Args:
            length: rows of a window.
            stride: rows from the beginning of one window to that of the next.
            lead: for forecasts: examples become dicts of `inputs`, the window, and `targets`: rows of which the first
                comes `lead` rows after the window's last (1: the very next).
            targets: how many rows `targets` has.

        Raises:
            ArgumentError: when a value can't be used, or after a verb other than a slice: windows are of rows that
                follow each other.
            SourceError: when there are too few rows for one window.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> hours = from_arrays({"t": np.arange(10)})
            >>> hours.windows(3, lead=2)[4]
            {'inputs': {'t': array([4, 5, 6])}, 'targets': {'t': array([8])}}
        """
        from loadax.sources.wrappers.windows import WindowSource

        check_fixed_rows(self.order, "windows()")
        begin, step = 0, 1
        order = self.order
        while isinstance(order, Sliced):
            begin, step, order = order.start + begin * order.step, step * order.step, order.parent
        if not isinstance(order, Sequential) or step != 1 or self.maps:
            raise ArgumentError(
                "windows() is about rows that follow each other: call it first, and shuffle, split or map the windows"
            )
        sizes = integer("length", length, 1), integer("stride", stride, 1)
        ahead = None if lead is None else integer("lead", lead)
        if ahead is not None and ahead < 2 - sizes[0]:
            raise ArgumentError(
                f"lead={ahead}: the first target would lie before the window; pass {2 - sizes[0]} or more"
            )
        within = begin, begin + len(self)
        source = WindowSource(self.source, self.reader.specs[0], within, *sizes, ahead, integer("targets", targets, 1))
        return Dataset(source, Sequential(len(source)))

    def pack(
        self,
        seq_len: int,
        *,
        method: Method = "split",
        long: Long = "error",
        window: int | None = None,
        index: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> "Dataset":
        """Documents of any length, side by side in rows of `seq_len`.

        A document is a one-dimensional array, or a dict of equally long ones. An example is a dict of the documents'
        leaves (a bare array becomes `tokens`), each of `seq_len` entries with zeros where nothing is, and of
        `segment_ids` (int32: 1, 2, … for the segments of the row, 0 for nothing), `positions` (int32: from 0 in every
        segment) and `loss_mask` (bool: whether the entry before is of the same segment, so that this one can be
        predicted from it).

        The documents are packed once, in the order in which epoch 0 meets them, also when that order changes with the
        epoch; from their lengths alone, so that any packed row is read at once. `shuffle` behind it shuffles packed
        rows; `split` and other verbs are about packed rows too. Empty documents are left out.

        Args:
            seq_len: entries of a row.
            method: "split": one document behind the other, cut every `seq_len`; only the last row has zeros at its end.
                "best_fit" or "first_fit": no document is cut, they are fitted together from the longest to the
                shortest; packed rows stand in the order of their first documents.
            long: what becomes of documents longer than `seq_len` where none is cut: "error"; "cut": into parts of
                `seq_len` and what is left, each a segment of its own; "drop": left out.
            window: how many documents that follow each other are fitted together. None: 1,048,576.
            index: a folder, in which the lengths and the plan are kept for later runs; made when it isn't there. One of
                other data is made anew, and the log says so. Processes may share it. Without one, documents whose
                lengths nobody knows are all read, each time.
            progress: whether to show a bar while they are; None: when stderr is a terminal.

        Raises:
            ArgumentError: when a value can't be used, a document is longer than `seq_len` and `long` is "error", or
                nothing is left.
            LeafError: when a record is no document; names the row and the leaf.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_source
            >>> packed = from_source([np.array([5, 6, 7]), np.array([8, 9]), np.array([4])]).pack(4, method="best_fit")
            >>> packed.read([0, 1])["tokens"].tolist(), packed[0]["segment_ids"].tolist()
            ([[5, 6, 7, 4], [8, 9, 0, 0]], [1, 1, 1, 2])
        """
        from loadax.packing import WINDOW, PackOptions, pack

        if window is not None and isinstance(method, str) and method == "split":
            raise ArgumentError(
                f"window={window!r} is for best_fit and first_fit: method='split' needs none; leave it out"
            )
        optional_flag("progress", progress)
        fitted = (
            0
            if isinstance(method, str) and method == "split"
            else WINDOW
            if window is None
            else integer("window", window, 1)
        )
        options = PackOptions(integer("seq_len", seq_len, 1), method, long, fitted)
        source = pack(self.reader, self.order, options, index, progress)
        return Dataset(source, Sequential(len(source)))

    def cache(
        self,
        path: str | os.PathLike[str],
        *,
        chunk_rows: int | None = None,
        shard_rows: int | None = None,
        compression: str | None = "zstd",
        overwrite: bool = False,
        progress: bool | None = None,
    ) -> "Dataset":
        """What the maps so far make of all rows, from a zarr store: written once, and read from then on.

        A store that was begun is gone on with, and one of other data or other maps is an error. Processes that share a
        file system may call this at once: they write the same. Afterwards shuffle, and map at random.

        Args:
            path: of a folder, or a URL.
            chunk_rows: as in `write_zarr`.
            shard_rows: as in `write_zarr`.
            compression: as in `write_zarr`.
            overwrite: writes the store anew, and replaces the one that is there once it is whole: for maps that were
                changed.
            progress: whether to show a bar; None: when stderr is a terminal.

        Raises:
            ArgumentError: when the order changes every epoch or a map is random, which the store could not repeat; or
                when `path` holds something else.
        """
        from loadax.writing.write import open_written, write_zarr

        check_fixed_rows(self.order, "cache()")
        if self.order.varies or self.reader.random:
            what = "the order changes every epoch" if self.order.varies else "a map is random"
            raise ArgumentError(
                f"cache() writes every row once, but {what}; cache first, then shuffle and map at random"
            )
        path = checked_path("path", path, "the path or URL of a folder for the cache")
        overwrite = flag("overwrite", overwrite)
        rows = Written(self)
        rows.check_elsewhere(path)
        write_zarr(
            rows,
            path,
            chunk_rows=chunk_rows,
            shard_rows=shard_rows,
            compression=compression,
            resume=not overwrite,
            overwrite=overwrite,
            progress=progress,
            go_on="call cache() again, and it goes on",
        )
        source = open_written(path, self.spec)
        return Dataset(source, Sequential(len(source)))

    def describe(self) -> list[Any]:
        """What decides the examples and their order, as JSON: lengths, verbs, seeds, element spec.

        Not contents, paths or functions.
        """
        specs, structure = flatten_spec(self.spec)
        leaves = [[path, list(spec.shape), str(spec.dtype)] for path, spec in zip(structure.paths, specs, strict=True)]
        return [ORDER_VERSION, self.order.describe(), self.reader.describe(), leaves]

    def repeat(self, times: int = _NEEDED) -> "Dataset":
        """`times` epochs of this dataset as one, each in its own order."""
        times = integer(
            "times",
            times,
            1,
            remedy=None if times is not None else "an int; to repeat for ever, pass num_epochs=None to the Dataloader",
        )
        if times > 1 and len(self) * times > MOST_POSITIONS:
            endless = (
                "the dataset never ends"
                if len(self) == MOST_POSITIONS
                else f"{len(self)} rows become more than 2**62 that way"
            )
            raise ArgumentError(f"times={times}: {endless}; leave repeat() out and pass num_epochs= to the Dataloader")
        return self._with(Repeated(self.order, times))

    def split(self, fraction: float, seed: int = 0) -> tuple["Dataset", "Dataset"]:
        """Two datasets that share no row: about `fraction` of the rows, and the rest.

        A row's side follows from its number and `seed` alone: it is the same before and after `shuffle`, and stays when
        rows are appended. Keeps a list of the rows of each side (8 bytes a row).

        Raises:
            ArgumentError: when `fraction` is not between 0 and 1, or the rows that are there change every epoch.
        """
        first, rest = split_order(self.order, _fraction(fraction), integer("seed", seed, most=None))
        parts = self._with(first), self._with(rest)
        for which, part in zip(("first", "second"), parts, strict=True):
            if len(self) > 1 and not len(part):
                warnings.warn(
                    f"split({fraction}, seed={seed}) of {len(self)} rows leaves none for the {which} part, "
                    "since each row is drawn by itself; pass another seed, or slice: data[:n] and data[n:]",
                    UserWarning,
                    stacklevel=2,
                )
        return parts

    def filter(
        self,
        fn: Callable[..., Any],
        key: str | None = None,
        *,
        index: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        progress: bool | None = None,
    ) -> "Dataset":
        """The rows of which `fn(example)` is True, as the maps so far make them.

        Every row is looked at once, now, by several threads; what remains is a list of the rows that are kept (8 bytes
        for each). So the length is exact, and the dataset can be read at any position. It looks at rows: before and
        after `shuffle` it means the same.

        Args:
            fn: gets one example, which it must not change, and returns a bool.
            key: says together with the data what an index was made by; change it with `fn`. None: `fn`'s code, the
                values that it closes over and the globals that it names say so.
            index: a local folder that keeps the list for later runs. One of other data or another `fn` is built anew,
                and the log says so. A run of several processes needs one that exists, which `loadax index` builds.
            workers: threads. None: 4, or more where the source waits for a network.
            progress: whether to show a bar; None: when stderr is a terminal.

        Raises:
            ArgumentError: when no row is kept, a map before it is random, or which rows there are changes every epoch.
            LeafTypeError: when `fn` returns something else than a bool; names the row.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> even = from_arrays(np.arange(10)).filter(lambda number: number % 2 == 0)
            >>> len(even), [int(number) for number in even]
            (5, [0, 2, 4, 6, 8])
        """
        from loadax.row_index.build import Options
        from loadax.row_index.verbs import keep

        if key is not None:
            text("key", key, "a text that you change when fn changes")
        options = Options(index, _threads(workers), optional_flag("progress", progress))
        return self._with(keep(self.order, self.reader, function("fn", fn, "a function of one example"), key, options))

    def exclude(self, rows: Any) -> "Dataset":
        """All rows but those in a list: duplicates, quarantine, takedowns. Keeps that list (8 bytes a row).

        Args:
            rows: numbers of the source's rows (those that `Dataloader.rows` gives), in any order; or the path of a file
                of them: `.npy`, or `.txt` with one a line (what follows a `#` is left out).

        Raises:
            ArgumentError: when it is no such list, all rows are in it, or which rows there are changes every epoch.
            RowIndexError: when a row is not there.
        """
        from loadax.row_index.verbs import leave_out

        return self._with(leave_out(self.order, self.reader.num_rows, rows))

    def split_by(
        self,
        key: str | Callable[..., Any],
        fraction: float,
        seed: int = 0,
        *,
        index: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        progress: bool | None = None,
    ) -> tuple["Dataset", "Dataset"]:
        """Two datasets that share no group of rows, such as a user or a patient.

        About `fraction` of the groups, and the rest.

        A group's side follows from its key and `seed` alone, so it stays when rows are appended. Every row's key is
        looked at once, now.

        Args:
            key: the name of a leaf that says which group a row belongs to, or a function of one example: an int, a str
                or bytes.
            fraction: between 0 and 1: of the groups, not of the rows.
            seed: another one cuts the groups in another way.
            index: as in `filter`; one index serves any fraction and seed.
            workers: as in `filter`.
            progress: as in `filter`.

        Raises:
            ArgumentError: when a value can't be used, a map before it is random, or which rows there are changes every
                epoch.
            LeafTypeError: when a row's key is something else; names the row.

        Examples:
            >>> import numpy as np
            >>> from loadax import from_arrays
            >>> visits = from_arrays({"patient": np.arange(12) // 3, "x": np.arange(12)})
            >>> train, test = visits.split_by("patient", 0.5)
            >>> set(train.read(range(len(train)))["patient"]) & set(test.read(range(len(test)))["patient"])
            set()
        """
        from loadax.row_index.build import Options
        from loadax.row_index.verbs import split_groups

        options = Options(index, _threads(workers), optional_flag("progress", progress))
        first, rest = split_groups(
            self.order, self.reader, key, _fraction(fraction), integer("seed", seed, most=None), options
        )
        return self._with(first), self._with(rest)

    def map(self, fn: Callable[..., Tree], rng: bool = False, seed: int = 0, spec: Tree | None = None) -> "Dataset":
        """Applies `fn(example)` to every row, or `fn(example, rng)` with the row's own `numpy.random.Generator`.

        Args:
            fn: gets one example (arrays without a row dimension; it may change them), returns a tree. What the last map
                returns must look the same for every row; what comes before it need not.
            rng: whether it gets the generator, which follows from (seed, place in the chain, epoch, row).
            seed: of the generators.
            spec: what it returns, as a tree of things with shape and dtype. None: found out by mapping one row.
        """
        made = Map(
            function("fn", fn, "a function of one example"),
            flag("rng", rng, _RNG_HINT),
            integer("seed", seed, most=None),
            self.reader.depth,
            _spec(spec),
        )
        _check_arguments(made, "a generator")
        return self._mapped(made)

    def map_batch(
        self,
        fn: Callable[..., Tree],
        rng: bool = False,
        seed: int = 0,
        spec: Tree | None = None,
        elementwise: bool = False,
    ) -> "Dataset":
        """Applies `fn(batch)` to many rows at once: some rows of some step, never a whole batch by contract.

        `fn` must act on each row by itself; what mixes rows belongs in the jitted step.

        Args:
            fn: gets a tree of arrays, rows first, and returns one with as many rows.
            rng: whether it gets a list of generators too, one a row.
            seed: of the generators.
            spec: what it returns for one row. None: found out by mapping one row.
            elementwise: promises that each element follows from the same element of the same leaf alone. Then `fn` may
                get some columns of the rows, and no columns are read that this process's devices don't hold.
        """
        rng, elementwise = flag("rng", rng, _RNG_HINT), flag("elementwise", elementwise)
        if elementwise and rng:
            raise ArgumentError(
                "elementwise=True with rng=True: random numbers for some columns would depend on the mesh; choose one"
            )
        place = self.reader.depth
        made = BatchMap(
            function("fn", fn, "a function of one example"),
            rng,
            integer("seed", seed, most=None),
            place,
            _spec(spec),
            elementwise,
        )
        _check_arguments(made, "a list of generators")
        return self._mapped(made)

    def _chunk_rows(self) -> int | None:
        """Rows of the source's chunks, of most of them; None where every row is read by itself."""
        starts = chunk_starts(self.source)
        if starts is None:
            return None
        if isinstance(starts, range):
            return min(starts.step, len(self.source))
        sizes, counts = np.unique(np.diff(starts, append=len(self.source)), return_counts=True)
        return int(sizes[np.argmax(counts)])

    def _source_row_bytes(self) -> int:
        return sum(math.prod(each.shape) * each.dtype.itemsize for each in flatten_spec(self.reader.specs[0])[0])

    def _warn_of_chunks(self) -> None:
        rows = self._chunk_rows()
        if rows is None or rows < _MANY_ROWS or not len(self):
            return
        largest = max(math.prod(each.shape) * each.dtype.itemsize for each in flatten_spec(self.reader.specs[0])[0])
        if rows * largest <= _MANY_BYTES:
            return
        warnings.warn(
            f"shuffle(seed) of data whose chunks hold {rows} rows decodes up to {rows} rows for each one used; "
            "shuffle(seed, block='chunks') decodes each once an epoch, "
            "or `loadax convert` writes the data in smaller chunks",
            UserWarning,
            stacklevel=3,
        )

    def _with(self, order: Order) -> "Dataset":
        return Dataset(self.source, order, self.maps)

    def _mapped(self, transform: Transform) -> "Dataset":
        return Dataset(self.source, self.order, (*self.maps, transform))


@final
@dataclass(frozen=True)
class Written:
    """A dataset as the rows of a store, with what tells it from others.

    Also its functions, as far as they can be told apart.
    """

    dataset: Dataset

    @property
    def spec(self) -> Tree:
        return self.dataset.spec

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, positions: Integers) -> Tree:
        return self.dataset.read(positions)

    def describe(self) -> Any:
        version, order, maps, examples = self.dataset.describe()
        functions = [
            f"{name_of(each.function).split(' ')[0]} {fingerprint(each.function).digest}" for each in self.dataset.maps
        ]
        described = {
            "order version": version,
            "order": order,
            "maps": maps,
            "examples": examples,
            "functions": functions,
        }
        return {**described, "sample": self._sample(), **identify(self.dataset.source)}

    def _sample(self) -> str:
        """A hash of some rows before the maps, and of one behind them.

        Other data, or a map that does something else now, has another one.
        """
        source = self.dataset.source
        positions = spread(len(self), sample_size(source, self.dataset._source_row_bytes(), _SAMPLE))  # noqa: SLF001 - its own
        visits = self.dataset.order.visits(np.zeros_like(positions), positions)
        read = self.dataset.reader.read_source(visits)
        before = read.items if isinstance(read, Examples) else [read]
        trees = (*before, self.read(positions[len(positions) // 2 :][:1]))
        return digest_of(leaf for tree in trees for leaf in leaf_arrays(tree))

    def check_elsewhere(self, path: str | os.PathLike[str]) -> None:
        """Refuses to write where the dataset reads."""
        check_elsewhere(self.dataset.source, path)


def _joins_chunks(source: BaseSource) -> bool:
    """Whether rows of what is decoded in chunks are rows of the source."""
    joined = (child.source for child in source.children if child.first_row is not None)
    return any(chunk_starts(each) is not None or _joins_chunks(each) for each in joined)


def _threads(workers: Any) -> int | None:
    return None if workers is None else integer("workers", workers, 1)


def _fraction(fraction: Any) -> float:
    remedy = "a number between 0 and 1, the share of the first part"
    share = number("fraction", fraction, remedy)
    if not 0 < share < 1:
        raise ArgumentError(f"fraction={fraction!r}: pass {remedy}")
    return share


def _check_arguments(made: Transform, what: str) -> None:
    """Refuses a function that wants a generator and gets none, or gets one and wants none.

    Here, not at the first row.
    """
    if takes(made.function, 2 if made.rng else 1) is not False or not takes(made.function, 1 if made.rng else 2):
        return  # what is wrong otherwise, its own error says
    name = name_of(made.function)
    if made.rng:
        raise ArgumentError(
            f"fn={name} takes one argument, and with rng=True it gets {what} as well; "
            "give it a second one, or leave rng out"
        )
    raise ArgumentError(f"fn={name} takes two arguments; pass rng=True, so that it gets {what} as the second one")


def _spec(spec: Tree | None) -> Tree | None:
    return None if spec is None else normalise_spec(spec, "spec")


def _verb(part: list[Any]) -> str:
    match part:
        case ["rows" | "own epochs", _]:
            pass
        case ["slice", start, step, size]:
            return f"[{start} + {step} * range({size})]" if step != 1 else f"[{start}:{start + size}]"
        case ["mix" | "concat", parts, *_]:
            return f" of {sum(rows for *_, rows, _ in parts)} rows"
        case ["filter" | "exclude" | "split_by" as verb, *_, size]:
            return f".{verb}({size} rows)"
        case ["shuffle", seed, block, window, lanes, _]:
            return f".shuffle({seed}, block={block}, window={window}, lanes={lanes})"
        case [name, *arguments]:
            return f".{name}({', '.join(map(str, arguments))})"
    return ""


def _map_verb(each: Transform) -> str:
    verb = "map" if isinstance(each, Map) else "map_batch"
    return f".{verb}({name_of(each.function)}{', rng=True' if each.rng else ''})"
