"""Job: reader, buffer layout and shared memory that a worker process loads before it reads pieces."""

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from types import FunctionType
from typing import Any, TypeAlias, final

import numpy as np

from loadax.core.formatting import name_of
from loadax.core.user_object import user_objects
from loadax.errors import SourceError, WorkerError
from loadax.loader.assembly.assembler import FillOptions, Piece
from loadax.loader.assembly.buffer_layout import lease_buffers
from loadax.loader.workers.connection import Connection
from loadax.loader.workers.messages import LoadJob, ReadPiece
from loadax.loader.workers.shared_memory import SharedMemoryPool
from loadax.reader import Reader
from loadax.work.payload import Package, Payload, pack
from loadax.work.pickling import snapshot
from loadax.work.remote_errors import unwrap
from loadax.work.worker import PayloadMissing, Raised

_NUMBERS = count()  # of jobs

# Makes what workers call, which is pickled, of readers.
MakeFiller: TypeAlias = Callable[[tuple[Reader, ...]], Any]

_OR_THREADS = (
    "make it picklable: open files and connections on first use, and make the "
    "Dataloader before reading from the data, or reopen them in __setstate__; or use "
    "worker_type='thread'"
)


def remember_unread(reader: Reader) -> None:
    """Keeps copies of users' objects for worker processes, before any is read from, which may open files."""
    for item in user_objects(reader):
        # which may be large, and open nothing
        if not isinstance(item.value, list | tuple):
            item.unread = item.unread or snapshot(item.value)


@final
class SharedReader:
    """Readers of one source, pickled once for all worker processes and jobs.

    Args:
        readers: Readers of the rows.
        make: Makes what workers call, of the readers.

    Raises:
        WorkerError: If the reader can't be pickled; names the part that can't.
    """

    def __init__(self, readers: tuple[Reader, ...], make: MakeFiller):
        self.readers = readers
        # of all payloads: a worker may be about to open an old one
        descriptors: list[int] = []
        weakref.finalize(self, _close, descriptors)
        self.package = Package(partial(_pack, make(readers), readers, descriptors))

    def index(self, reader: Reader) -> int:
        """Index of one of the readers."""
        return next(
            index for index, known in enumerate(self.readers) if known is reader
        )


@final
class LatestReader:
    """The shared reader of the latest job, also for the next ones with the same reader or family of readers.

    Args:
        make: Makes what workers call, of the readers.
    """

    def __init__(self, make: MakeFiller) -> None:
        self._make = make
        self._shared: SharedReader | None = None

    def share(self, reader: Reader, family: tuple[Reader, ...]) -> SharedReader:
        """The shared reader of a reader, of which `family` is empty or has all of its source.

        Raises:
            WorkerError: If it can't be pickled; names the part that can't.
        """
        if self._shared is None or all(
            known is not reader for known in self._shared.readers
        ):
            # free its copy of the data before making the next one
            self._shared = None
            self._shared = SharedReader(family or (reader,), self._make)
        return self._shared


@final
class Job:
    """Everything workers need to read pieces of one kind of batch, and the shared memory they write to.

    Args:
        shared_reader: Readers of the source.
        reader: The one of them that reads the rows.
        options: How to fill the buffers of a step.
        most_idle: Bytes of idle memory to keep for reuse.
    """

    def __init__(
        self,
        shared_reader: SharedReader,
        reader: Reader,
        options: FillOptions,
        most_idle: int,
    ):
        self.number = next(_NUMBERS)
        self._memory = SharedMemoryPool(most_idle)
        self.buffers = partial(lease_buffers, options.layout, self._memory.lease)
        self.shared_reader = shared_reader
        self._index = shared_reader.index(reader)
        self._options = options
        weakref.finalize(self, self._memory.close)

    def message(self, piece: Piece) -> ReadPiece:
        """The request to read a piece into buffers of this job."""
        rows, epochs = (
            np.ascontiguousarray(numbers, np.int64).tobytes()
            for numbers in piece.visits
        )
        block = self._memory.block(piece.buffers.memory)
        count = piece.buffers.count
        return ReadPiece(self.number, block, count, piece.low, rows, epochs)

    def load(
        self, connection: Connection, has_reader: bool, others: tuple[int, ...]
    ) -> None:
        """Loads this job in a worker.

        Args:
            connection: Connection to the worker.
            has_reader: Whether the worker already has the reader.
            others: Numbers of other jobs of this reader that the worker should keep.

        Raises:
            WorkerError: If the worker can't load it.
        """
        package = self.shared_reader.package
        while True:
            payload = package.latest
            if has_reader:
                message, *descriptors = (None,)
            else:
                message, *descriptors = (payload.message, payload.descriptor)
            load = LoadJob(
                self.number,
                others,
                message,
                payload.arrays,
                self._index,
                self._options,
            )
            connection.send(load, (self._memory.descriptor, *descriptors))
            answer, _ = connection.receive()
            if answer is None:
                return
            if isinstance(answer, Raised):
                failure = answer.error
                raised = unwrap(failure, "the worker process")
                if isinstance(raised, SourceError) or (
                    isinstance(raised, WorkerError) and failure.pickled is not None
                ):
                    # a problem of the data or of a module, not of pickling
                    raise raised
                error = WorkerError(
                    f"a worker process could not load the data: {failure.line}; "
                    f"{_OR_THREADS}"
                )
                error.add_note(f"loadax: in the worker process:\n{failure.traceback}")
                raise error
            assert isinstance(answer, PayloadMissing)
            package.add_module(answer.module or "", payload)


def _pack(
    value: Any,
    readers: tuple[Reader, ...],
    descriptors: list[int],
    by_value: Sequence[str],
) -> Payload:
    """Packs the value of readers, and adds the descriptor of the payload to a list.

    Raises:
        WorkerError: If it can't be pickled; names the part that can't.
    """
    try:
        payload = _pack_now_or_unread(value, readers, by_value)
    except SourceError:
        raise  # a problem of the data, not of pickling
    except Exception as error:
        reader = readers[0]
        parts: list[tuple[str, Any]] = [
            (f"the source, {reader.source!r}", reader.source)
        ]
        parts += [
            (f"map {name_of(row_map.function)}", row_map.function)
            for row_map in reader.maps
        ]
        part = next(
            (name for name, part in parts if not _picklable(part)), "the data"
        )
        reason = f"{type(error).__name__}: {error}; {_OR_THREADS}"
        raise WorkerError(
            f"{part} can't be sent to a worker process: {reason}"
        ) from error
    descriptors.append(payload.descriptor)
    return payload


def _pack_now_or_unread(
    value: Any, readers: tuple[Reader, ...], by_value: Sequence[str]
) -> Payload:
    # objects that have been read from may have opened something
    with suppress(Exception):
        return pack(value, by_value)
    unread = [
        item
        for item in user_objects(readers)
        if item.unread and not _picklable(item.value)
    ]
    instead = [
        (item.value, (*item.unread, _attributes(item.value))) for item in unread
    ]
    return pack(value, by_value, instead)


def _picklable(value: Any) -> bool:
    try:
        os.close(pack(value).descriptor)
    except Exception:  # noqa: BLE001 - any error is a no
        return False
    return True


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes of an object, not of a function, that can be pickled."""
    named = {} if isinstance(value, FunctionType) else getattr(value, "__dict__", {})
    return {name: part for name, part in named.items() if _picklable(part)}


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
