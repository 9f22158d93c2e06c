"""Code that a worker of an executor runs: it opens the dataset of a recipe once, and fills pieces."""

import functools
import hashlib
import mmap
import os
import pickle
import socket
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.buffers import BufferPool
from loadax.core.memory import keep_freed_memory
from loadax.core.user_object import RAISED
from loadax.errors import LoadaxError, WorkerError
from loadax.kept.recipe import check_versions, versions
from loadax.loader.assembly.assembler import (
    Assembler,
    FillOptions,
    Piece,
    fill_all,
    piece_layout,
)
from loadax.loader.assembly.buffer_layout import BatchBuffers, lease_buffers
from loadax.loader.metrics.stats import Timing
from loadax.loader.remote.row_cache import RowCache
from loadax.loader.workers.payload import PickledPayload, unpack
from loadax.loader.workers.shared_memory import nameless_file
from loadax.protocols import Visits
from loadax.reader import Reader
from loadax.work.pickling import pickle_answer
from loadax.work.remote_errors import wrap
from loadax.work.tasks import Raised

# that a worker keeps open, such as those of training and evaluation
_MOST_RECIPES = 4
_MOST_JOBS = 32  # of a recipe, such as buckets
_MOST_LAYOUTS = 64
# bytes that are filled at a time, with what maps make in between in the caches of a core
_PART = 2 << 20

# A text, so that a worker without loadax can tell that it lacks it.
_CALL = "__import__('loadax.loader.remote.task', fromlist=['run']).run(*arguments)"


# What a worker opens, and keeps: versions that it must share with the training process, and the message, arrays and
# memory of the payload of the readers; see `PickledPayload`.
Recipe: TypeAlias = tuple[dict[str, str], bytes, tuple[tuple[int, int], ...], bytes]


class Missing(NamedTuple):
    """Answer: the worker lacks the recipe with this digest, or a module that it needs."""

    digest: str
    module: str | None = None


class Ready(NamedTuple):
    """Answer to a task without a piece: the worker has the recipe with this digest."""

    digest: str


class Filled(NamedTuple):
    """Answer: the rows of a piece.

    Args:
        timing: Fields of its `Timing`.
        memory: uint8: buffers of its `piece_layout`.
        objects: Pickled rows of the tiles of Python objects; empty if there are none.
        worker: Id of the worker's process.
    """

    timing: tuple[Any, ...]
    memory: NDArray[np.uint8]
    objects: bytes
    worker: int


def make_recipe(payload: PickledPayload) -> Recipe:
    """Makes the recipe of readers that were pickled for worker processes."""
    with mmap.mmap(payload.descriptor, 0, access=mmap.ACCESS_READ) as memory:
        return versions(), payload.message, payload.arrays, memory[:]


def call_of(
    name: str, digest: str, recipe: Recipe | None = None, *piece: Any
) -> Sequence[Any]:
    """The call of `run`: a function and its arguments. `name`: unique, since Dask runs equal calls once."""
    return eval, _CALL, {"arguments": (digest, recipe, *piece), "name": name}


def run(digest: str, recipe: Recipe | None, *piece: Any) -> Any:
    """Fills a piece in a worker of an executor.

    Args:
        digest: Digest of the recipe.
        recipe: The recipe. None: the worker may know it.
        piece: Arguments of `_Data.fill`; none: the task only shows that there is a worker.

    Returns:
        `Filled`, `Ready`, `Missing`, or `Raised` with a `RemoteError`.
    """
    try:
        data = _data(digest, recipe)
        if isinstance(data, Missing):
            return data
        if piece:
            return data.fill(*piece)
        return Ready(digest)
    except RAISED as error:
        return Raised(wrap(error))


@final
class _Data:
    """An opened recipe. Thread-safe."""

    def __init__(self, digest: str, readers: tuple[Reader, ...]):
        self._digest = digest
        self._readers = readers
        self._job = functools.lru_cache(_MOST_JOBS)(self._make_job)

    def fill(
        self,
        reader: int,
        options: bytes,
        rows: bytes,
        epochs: bytes,
        low: int,
        steps: int,
    ) -> "Filled":
        """Fills a piece.

        Args:
            reader: Index of the reader.
            options: Pickled `FillOptions`.
            rows: Rows of the visits of the piece, int64, as bytes.
            epochs: Epochs of the visits, int64, as bytes.
            low: First row of each step in the training process.
            steps: Number of steps there.
        """
        visits = Visits(
            np.frombuffer(rows, np.int64), np.frombuffer(epochs, np.int64)
        )
        return self._job(reader, options).fill(visits, low, steps)

    def _make_job(self, reader: int, options: bytes) -> "_Job":
        digest = f"{self._digest} {reader} {hashlib.sha256(options).hexdigest()}"
        return _Job(digest, self._readers[reader], pickle.loads(options))  # noqa: S301 - tasks are pickles anyway


@final
class _Job:
    """A reader, and how it fills pieces. Thread-safe."""

    def __init__(self, digest: str, reader: Reader, options: FillOptions):
        self._digest = digest
        self._reader = reader
        self._options = options
        self._assembler = functools.lru_cache(_MOST_LAYOUTS)(self._make_assembler)
        self._lease = BufferPool(64 << 20).lease  # idle bytes
        # Rows are kept if each has all tiles, without objects of unknown size, and errors end a run.
        self._keeps = not options.masking and all(
            tile.select is None and not tile.leaf.dtype.hasobject
            for tile in options.layout.tiles
        )

    def fill(self, visits: Visits, low: int, steps: int) -> Filled:
        """Fills a piece."""
        if self._keeps:
            timing, buffers = self._fill_missing(visits)
        else:
            timing, buffers = self._fill(visits, low, steps)
        objects = buffers.objects(0, len(visits.rows))
        if objects:
            pickled = pickle_answer(objects)
        else:
            pickled = b""
        return Filled(tuple(timing), buffers.memory, pickled, os.getpid())

    def _fill(
        self, visits: Visits, low: int = 0, steps: int = 1
    ) -> tuple[Timing, BatchBuffers]:
        assembler = self._assembler(low, low + len(visits.rows) // steps, steps)
        layout = assembler.layout
        buffers = lease_buffers(layout, self._lease, 1)
        size = max(1, _PART * layout.rows // max(1, layout.bytes_per_step))
        return fill_all(assembler.fill, Piece(visits, 0, buffers).cut(size)), buffers

    def _fill_missing(self, visits: Visits) -> tuple[Timing, BatchBuffers]:
        """Fills the rows that are not kept, and copies those that are."""
        keys = list(
            zip(
                [self._digest] * len(visits.rows),
                visits.epochs.tolist(),
                visits.rows.tolist(),
                strict=True,
            )
        )
        kept = _rows.find(keys)
        missing = [index for index, found in enumerate(kept) if found is None]
        if len(missing) == len(keys):
            timing, buffers = self._fill(visits)
            _rows.keep(keys, buffers)
            return timing, buffers
        timing = Timing()
        buffers = lease_buffers(
            self._assembler(0, len(keys), 1).layout, self._lease, 1
        )
        if missing:
            timing, part = self._fill(
                Visits(visits.rows[missing], visits.epochs[missing])
            )
            _rows.keep([keys[index] for index in missing], part)
            for row, index in enumerate(missing):
                kept[index] = part, row
        for index, found in enumerate(kept):
            assert found is not None  # it was kept, or was missing
            buffers.copy_row(index, *found)
        return timing._replace(
            rows=int((visits.rows >= 0).sum()), kept=len(keys) - len(missing)
        ), buffers

    def _make_assembler(self, low: int, high: int, steps: int) -> Assembler:
        layout = piece_layout(self._options.layout, low, high, steps)
        return Assembler(self._reader, self._options._replace(layout=layout))


_opened: OrderedDict[str, _Data] = OrderedDict()
_rows = RowCache(256 << 20)  # bytes, for other jobs
_opening = threading.Lock()  # a worker with several threads opens a dataset once


def _data(digest: str, recipe: Recipe | None) -> _Data | Missing:
    with _opening:
        if digest not in _opened:
            if recipe is None:
                return Missing(digest)
            try:
                _opened[digest] = _Data(digest, _open(recipe))
            except ModuleNotFoundError as error:
                return Missing(digest, error.name or "")
            while len(_opened) > _MOST_RECIPES:
                _opened.popitem(last=False)
        _opened.move_to_end(digest)
        return _opened[digest]


def _open(recipe: Recipe) -> tuple[Reader, ...]:
    known, message, arrays, memory = recipe
    check_versions(known, "remote")
    keep_freed_memory()
    try:
        with os.fdopen(nameless_file(), "wb") as file:
            file.write(memory)
            file.flush()
            readers: tuple[Reader, ...] = unpack(
                PickledPayload(message, file.fileno(), arrays)
            )
    except (LoadaxError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise WorkerError(
            f"a worker of remote= on {socket.gethostname()} could not load the data: "
            f"{type(error).__name__}: {error}; make it picklable: open files and "
            "connections on first use, or leave out remote="
        ) from error
    return readers
