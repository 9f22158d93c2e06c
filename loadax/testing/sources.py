"""`check_source`: checks the whole contract of a source."""

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
    """Checks all laws of the contract of `loadax.Source`. Call it in your tests.

    It reads rows in many ways and compares them bitwise with the same rows read one by one. Test yourself that those
    values are right.

    Args:
        source: Source, or anything else that `loadax.Dataloader` accepts: arrays, an object with `__len__` and
            `__getitem__`, a `Dataset`. For a dataset, its source is checked, and runs through a loader include its
            order and maps.
        seed: Seed of all random choices.
        rows: Number of different rows to read: the first, the last, and some between. Their values are kept in memory.
        loader: Whether to check runs through a `Dataloader` too: resumed, with other workers, in shards.
        pickled: Whether to check that the source can be pickled and reads the same in a fresh process.
        timeout: Timeout in seconds of the threads, the fresh process and the runs each; a hang is an error.

    Raises:
        ConformanceError: When a law is broken; shows the rows, the leaf and both values, and states the contract.
        ArgumentError: When an argument is invalid.

    Examples:
        >>> import numpy as np
        >>> from loadax.testing import check_source
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
        loadax.errors.ConformanceError: Squares breaks the law 'rows out of range': read([-1]), with len() 10, ...
    """
    integer("rows", rows, 1)
    if timeout <= 0:
        raise ArgumentError(f"timeout={timeout}: pass seconds, more than 0")
    name = source.source.type_name if isinstance(source, Dataset) else type(source).__name__
    # Arrays and trees of them are not sequences of rows, and have their own errors.
    plain = isinstance(source, Dataset | dict | tuple) or hasattr(source, "__array__")
    if hasattr(source, "__len__") and not plain:
        measure(source, name)
    dataset = as_dataset(source)
    subject = Subject(dataset.source, name, seed, rows)
    check_claims(subject)
    if subject.alike:  # other rows can only be read one by one
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
