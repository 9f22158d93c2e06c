"""Messages between the training process and a worker. An answer may also be a `RemoteError`."""

from typing import Any, NamedTuple

from loadax.loader.assembly.assembler import FillOptions
from loadax.loader.workers.shared_memory import Block


class LoadJob(NamedTuple):
    """Request to load a job, sent with the descriptors of the shared memory and of the reader's payload.

    Args:
        message: Message of the payload. None: the worker already has the reader.
        arrays: Arrays of the payload.
        options: How to fill the buffers of a step.
    """

    message: bytes | None
    arrays: tuple[tuple[int, int], ...]
    options: FillOptions


class ReadPiece(NamedTuple):
    """Request to read a piece of the job into its buffers.

    Args:
        block: Block of shared memory with the buffers.
        steps: Number of steps in the buffers.
        low: First row of the piece in the buffers.
        rows_per_step: Rows that this process reads per step.
        rows: Rows of the visits, int64, as bytes.
        epochs: Epochs of the visits, int64, as bytes.
    """

    block: Block
    steps: int
    low: int
    rows_per_step: int
    rows: bytes
    epochs: bytes


class MissingModule(NamedTuple):
    """Answer: the job needs a module that the worker can't import. None: the job is loaded."""

    module: str


class PieceRead(NamedTuple):
    """Answer: the piece is in its buffers.

    Args:
        timing: Fields of its `Timing`.
        objects: Pickled rows of the tiles of Python objects; empty if there are none.
    """

    timing: tuple[Any, ...]
    objects: bytes
