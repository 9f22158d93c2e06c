"""The exceptions that loadax raises.

    LoadaxError
    ├── ArgumentError (ValueError)              an argument with a value that can't be used
    ├── UnsupportedError (NotImplementedError)  a feature that loadax does not have (yet)
    ├── MeshError (ValueError)                  no mesh, another mesh, or a mesh without some axis
    ├── PartitionError (ValueError)             a spec that does not fit its leaf, a batch that can't be split evenly
    ├── LeafError (ValueError)                  a leaf that can't be placed: ragged, wrong shape, value out of range
    │   └── LeafTypeError (TypeError)           a leaf with a dtype that JAX lacks: strings, objects, dates
    ├── SourceError (ValueError)                data that can't be read, or a source that breaks its contract
    │   └── StorageError                        storage that does not answer, or refuses
    ├── RowIndexError (IndexError)              a row, position or step out of range
    ├── ClosedError (RuntimeError)              a batch requested from a closed iterator or a finished epoch
    ├── ScheduleError (TypeError)               a length that is unknown, because a schedule counts steps
    ├── StreamError (TypeError)                 a length, or random access, asked of a stream
    ├── ConformanceError (AssertionError)       a source or map that fails a check of `loadax.testing`
    ├── StateError (ValueError)                 a saved state of other data
    ├── HostError (RuntimeError)                another host of the run differs, or failed
    ├── StallError (TimeoutError)               a batch that did not come within `abort_after`
    └── WorkerError (RuntimeError)              a worker process that keeps dying, or can't receive the data

Every message names the argument or the leaf, shows the value, and says what to do. Passwords and signatures in URLs are
redacted, and control characters escaped. An exception of a user's function keeps its type, and gets a note with the
step and the rows.
"""

import re
from typing import Any

from loadax.redaction import redact


class LoadaxError(Exception):
    """Base class of all errors that loadax raises.

    Attributes:
        argument: Name of the argument to change, where the error is about one. A message that begins with it, such as
            "seed='a'", needs no other word for it.
    """

    def __init__(self, *arguments: Any, argument: str | None = None):
        if arguments:
            stated = re.match(r"(\w+)[=\[]", str(arguments[0]))
        else:
            stated = None
        if argument is None and stated:
            self.argument = stated[1]
        else:
            self.argument = argument
        # Logs may be public, and a location may contain a password, a signature, or what a terminal obeys.
        super().__init__(
            *(
                redact(value) if isinstance(value, str) else value
                for value in arguments
            )
        )

    def add_note(self, note: str) -> None:
        """Adds a note, with the secrets of URLs redacted, and control characters escaped."""
        super().add_note(redact(note))


class ArgumentError(LoadaxError, ValueError):
    """An argument has a value that can't be used."""


class UnsupportedError(LoadaxError, NotImplementedError):
    """A feature that loadax does not have, or does not have yet."""


class MeshError(LoadaxError, ValueError):
    """There is no mesh, it is not the planned one, or it lacks an axis."""


class PartitionError(LoadaxError, ValueError):
    """A partition spec does not fit its leaf, or the mesh can't split the batch evenly."""

    def __init__(self, *arguments: Any, argument: str = "partition"):
        super().__init__(*arguments, argument=argument)


class LeafError(LoadaxError, ValueError):
    """A leaf of an example can't become part of a `jax.Array`."""


class LeafTypeError(LeafError, TypeError):
    """A leaf has a dtype that JAX does not have."""


class SourceError(LoadaxError, ValueError):
    """Data can't be read, or a source breaks its contract."""


class StorageError(SourceError):
    """Storage does not answer, or refuses; the same read may succeed later, or on another host."""


class RowIndexError(LoadaxError, IndexError):
    """A row, position or step is out of range."""


class ClosedError(LoadaxError, RuntimeError):
    """A batch was requested from a closed iterator or from an epoch that was left."""


class ScheduleError(LoadaxError, TypeError):
    """A length or other value depends on the batch size, which a dataset alone does not know.

    It is a TypeError, so `list()` and `tqdm()` work without a length.
    """


class StreamError(LoadaxError, TypeError):
    """A stream was asked for its length, or for rows out of order.

    It is a TypeError, so `list()` and `tqdm()` work without a length.

    Args:
        asked: What was called.
        remedy: What to do instead.
    """

    def __init__(
        self,
        asked: str,
        remedy: str = "choose rows before, use map(), map_batch(), pad(), pack(), shuffle(seed, buffer_size=1000) "
        "and mix() with it, and iterate over a Dataloader, from a saved state with "
        "loader.iterate(start=state)",
    ):
        super().__init__(
            f"{asked}: a stream has no length and no random access, since its rows "
            f"are known only once the rows before them were read; {remedy}"
        )


class ConformanceError(LoadaxError, AssertionError):
    """A source or a map fails a check of `loadax.testing`."""


class StateError(LoadaxError, ValueError):
    """A saved state belongs to other data, or is not a state."""


class WorkerError(LoadaxError, RuntimeError):
    """A worker process can't be started, can't receive its source and maps, or keeps dying."""


class HostError(LoadaxError, RuntimeError):
    """Hosts of one run have different data or arguments, or another host has failed."""


class StallError(LoadaxError, TimeoutError):
    """A batch did not come within `abort_after` seconds."""
