"""Messages between the training process and a worker. A `Failure` is an answer too."""

from typing import Any, NamedTuple

from loadax.loader.assembly.buffer_layout import BufferLayout
from loadax.loader.workers.shared_memory import Block


class LoadJob(NamedTuple):
    """Take up a job. The descriptors of the shared memory and of the payload that the reader is in come along.

    Args:
        message: Message of the payload. None: the worker has the reader already.
        arrays: Arrays of the payload.
        layout: Layout of the buffers of one step.
        key_seed: Seed of the random keys, where there are any.
    """

    message: bytes | None
    arrays: tuple[tuple[int, int], ...]
    layout: BufferLayout
    key_seed: int | None


class ReadPiece(NamedTuple):
    """Read a piece of the job into its buffers.

    Args:
        block: Block of shared memory that the buffers are in.
        steps: Number of steps that the buffers hold.
        low: First of their rows that the piece fills.
        rows_per_step: Rows that are read in a step.
        rows: Rows of the visits, int64, as bytes.
        epochs: Epochs of the visits, int64, as bytes.
    """

    block: Block
    steps: int
    low: int
    rows_per_step: int
    rows: bytes
    epochs: bytes


class Loaded(NamedTuple):
    """It is done."""


class MissingModule(NamedTuple):
    """The job needs a module that can't be imported here."""

    module: str


class PieceRead(NamedTuple):
    """The piece is in its buffers; that took so long."""

    timing: tuple[Any, ...]
