"""The exceptions that loadax raises.

    LoadaxError
    ├── ArgumentError (ValueError)          an argument whose value can't be used
    ├── UnsupportedError (NotImplementedError)  a feature that is not there, or not yet
    ├── MeshError (ValueError)              no mesh, another mesh, an axis that the mesh has not
    ├── PartitionError (ValueError)         a spec that does not fit its leaf, a batch that the mesh can't cut
    ├── LeafError (ValueError)              a leaf that can't be placed: ragged, of another shape, out of range
    │   └── LeafTypeError (TypeError)       a leaf whose dtype JAX does not have: strings, objects, dates
    ├── SourceError (ValueError)            data that can't be read, or a source that breaks its contract
    ├── RowIndexError (IndexError)          a row, position or step that is not there
    ├── ClosedError (RuntimeError)          an iterator or an epoch that is over was asked for more
    ├── ScheduleError (TypeError)           a length that follows from a batch size, asked of a dataset alone
    ├── ConformanceError (AssertionError)   a source or a map that breaks a law of its contract; see `loadax.testing`
    ├── StateError (ValueError)             a saved state that belongs to other data
    └── WorkerError (RuntimeError)          a worker process that dies again and again, or can't be sent the data

Every message names the argument or the leaf, shows the value, and says what to do; passwords and signatures of URLs are
left out. An exception that a user's own function raises keeps its type; loadax adds a note that says which step and
which rows it happened on.
"""

from typing import Any

from loadax.redaction import redact


class LoadaxError(Exception):
    """The root of every error that loadax itself raises.

    Attributes:
        argument: Name of the argument to change, where the error is about one.
    """

    def __init__(self, *arguments: Any, argument: str | None = None):
        self.argument = argument
        # Messages go to logs that many can read, and a location may hold a password or a signature.
        super().__init__(*(redact(each) if isinstance(each, str) else each for each in arguments))

    def add_note(self, note: str) -> None:
        """As of any exception, without the secrets of locations."""
        super().add_note(redact(note))


class ArgumentError(LoadaxError, ValueError):
    """An argument's value can't be used."""


class UnsupportedError(LoadaxError, NotImplementedError):
    """A feature that loadax does not have, or does not have yet."""


class MeshError(LoadaxError, ValueError):
    """There is no mesh, or it is another one than was planned for, or it lacks an axis."""


class PartitionError(LoadaxError, ValueError):
    """A partition spec does not fit its leaf, or the mesh can't cut the batch."""

    def __init__(self, *arguments: Any, argument: str = "partition"):
        super().__init__(*arguments, argument=argument)


class LeafError(LoadaxError, ValueError):
    """A leaf of an example can't become part of a `jax.Array`."""


class LeafTypeError(LeafError, TypeError):
    """A leaf's dtype is one that JAX does not have."""


class SourceError(LoadaxError, ValueError):
    """Data can't be read, or a source does not keep its contract."""


class RowIndexError(LoadaxError, IndexError):
    """A row, a position or a step lies outside what there is."""


class ClosedError(LoadaxError, RuntimeError):
    """An iterator that is closed, or an epoch that was left, was asked for a batch."""


class ScheduleError(LoadaxError, TypeError):
    """What depends on a batch size was asked of a dataset alone.

    A TypeError, so that `list()` and `tqdm()` do without a length.
    """


class ConformanceError(LoadaxError, AssertionError):
    """A source or a map breaks a law of its contract: what `loadax.testing` found."""


class StateError(LoadaxError, ValueError):
    """A saved state belongs to other data, or is no state at all."""


class WorkerError(LoadaxError, RuntimeError):
    """A worker process can't be started, can't be told what to read, or dies of it."""
