"""Which errors belong to a row, so that every process that reads it meets them, and its place can be masked."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np

from loadax.dataset import Dataset
from loadax.errors import LeafError, LoadaxError, SourceError, StorageError
from loadax.protocols import Integers

_MOST_PROBED = 100  # examples
_OURS = f"{Path(__file__).parents[2]}/"
# Errors of a program, where they come from code of loadax itself.
_MISTAKES = (AssertionError, AttributeError, ImportError, NameError, TypeError)


def maskable(error: BaseException) -> bool:
    """Whether an error comes from the contents of a row, or a function of it, and from nothing else.

    What a network, a disk or the memory of one machine does is not: another process may have read the same row well.
    Neither is a mistake of loadax.
    """
    chain = list(_causes(error))
    if any(_environment(cause) for cause in chain):
        return False
    if isinstance(error, LoadaxError):
        return isinstance(error, LeafError | SourceError)
    if not isinstance(error, _MISTAKES):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and not frames[-1].filename.startswith(_OURS)


def probe_readable(dataset: Dataset, quarantine: Integers, masking: bool) -> Dataset:
    """The dataset, with its spec inferred from its first example that is not in quarantine and, with masking, readable.

    Raises:
        Exception: If none of the first examples is.
    """
    first: Exception | None = None
    for position in range(
        1 if dataset.is_stream else min(_MOST_PROBED, len(dataset))
    ):
        visits = dataset.order.visits(
            np.zeros(1, np.int64), np.full(1, position, np.int64)
        )
        if visits.rows[0] in quarantine:
            continue
        probed = dataset.probed_at(visits)
        try:
            _ = probed.spec
        except Exception as error:
            if not masking or not maskable(error):
                raise
            first = first or error
        else:
            return probed
    if first is not None:
        raise first
    return dataset


def _causes(error: BaseException | None) -> Any:
    while error is not None:
        yield error
        error = error.__cause__ or (
            None if error.__suppress_context__ else error.__context__
        )


def _environment(error: BaseException) -> bool:
    if not isinstance(error, Exception) or isinstance(
        error, MemoryError | StorageError
    ):
        return True
    if isinstance(error, OSError):
        # Image libraries raise OSErrors without an error number for broken images; those of networks have own classes.
        return error.errno is not None or not (
            type(error) is OSError or type(error).__name__ == "UnidentifiedImageError"
        )
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)
