"""`check_source`: the whole contract of a source."""

from typing import Any

from loadax.core.arguments import integer
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.io import as_dataset
from loadax.testing.columns import check_columns
from loadax.testing.processes import check_process
from loadax.testing.reads import check_claims, check_length_stays, check_reads
from loadax.testing.subject import Subject, measure
from loadax.testing.threads import check_threads
from loadax.testing.wrappers import check_examples, check_wrapper


def check_source(
    source: Any, *, seed: int = 0, rows: int = 64, loader: bool = True, pickled: bool = True, timeout: float = 60.0
) -> None:
    """Checks that a source keeps the contract of `loadax.Source`, in each of its laws; call it in a test of yours.

    It reads rows in many ways and compares them, bit by bit, with the same rows read one by one. That those are right
    is for a test of yours to say.

    Args:
        source: Source, or whatever `loadax.Dataloader` takes: arrays, an object with `__len__` and `__getitem__`, a
            `Dataset`. Of a dataset the source is checked, and its order and maps take part in the runs through a
            loader.
        seed: Seed of everything that is random here.
        rows: Number of different rows to read: the first, the last, and some between. Their values are kept in memory.
        loader: Whether to check runs through a `Dataloader` too: resumed, with other workers, in shards.
        pickled: Whether to check that the source can be pickled and reads the same in a fresh process.
        timeout: Seconds that the threads, the fresh process and the runs each may take; more is a hang, and so an
            error.

    Raises:
        ConformanceError: when a law is broken; names it, shows the rows, the leaf and both values, and says what the
            contract is.
        ArgumentError: when an argument can't be used.

    Examples:
        >>> import numpy as np
        >>> class Squares:
        ...     spec = np.zeros((), np.int32)
        ...
        ...     def __len__(self):
        ...         return 10
        ...
        ...     def read(self, rows):
        ...         return np.arange(10, dtype=np.int32)[rows] ** 2
        >>> check_source({"x": np.arange(20.0)})
        >>> check_source(Squares(), pickled=False)
        Traceback (most recent call last):
        ...
        loadax.errors.ConformanceError: Squares breaks the law 'rows that are not there': read([-1]), with len() 10, ...
    """
    integer("rows", rows, 1)
    if timeout <= 0:
        raise ArgumentError(f"timeout={timeout}: pass seconds, more than 0")
    name = source.source.type_name if isinstance(source, Dataset) else type(source).__name__
    # Arrays and trees of them are no sequences of rows, and have errors of their own.
    if (
        hasattr(source, "__len__")
        and not isinstance(source, Dataset | dict | tuple)
        and not hasattr(source, "__array__")
    ):
        measure(source, name)
    dataset = as_dataset(source)
    subject = Subject(dataset.source, name, seed, rows)
    check_claims(subject)
    if subject.alike:  # others can only be read one by one
        check_reads(subject)
        check_columns(subject)
        check_threads(subject, timeout)
        if pickled:
            check_process(subject, timeout)
    check_examples(subject)
    check_wrapper(subject)
    if loader:
        from loadax.testing.runs import check_runs

        check_runs(subject, dataset, seed, rows, timeout)
    check_length_stays(subject)
