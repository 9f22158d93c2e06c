"""Messages between the training process and a worker. A `Failure` is an answer too."""

from typing import Any, NamedTuple

from loadax.loader.assembly.buffer_layout import BufferLayout
from loadax.loader.workers.shared_memory import Block


class LoadJob(NamedTuple):
    """Take up a job; the descriptors of the arena, and of the parcel that the reader is in, come along.

    Args:
        message: of the parcel. None: the worker has the reader already.
        arrays: of the parcel.
        plan: of the memory of steps.
        key_seed: of the random keys, where there are any.
    """

    message: bytes | None
    arrays: tuple[tuple[int, int], ...]
    plan: BufferLayout
    key_seed: int | None


class ReadPiece(NamedTuple):
    """Read a piece of the job into its slot.

    Args:
        slot: of the run that the piece belongs to.
        steps: of that run.
        low: the first of the run's rows that is meant.
        per_step: rows of a step.
        rows: int64, as bytes.
        epochs: the same.
    """

    slot: Block
    steps: int
    low: int
    per_step: int
    rows: bytes
    epochs: bytes


class Loaded(NamedTuple):
    """It is done."""


class MissingModule(NamedTuple):
    """The job needs a module that can't be imported here."""

    module: str


class PieceRead(NamedTuple):
    """The piece is in its slot; that took so long."""

    timing: tuple[Any, ...]
