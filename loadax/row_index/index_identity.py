"""Identity of what an index on disk has: the rows, the maps before the verb, and the function that is asked of them."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.distributed import this_process
from loadax.core.fingerprint import fingerprint, unrecognised
from loadax.core.log import log
from loadax.core.spec import describe_spec, leaf_arrays
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import Engine
from loadax.reader import Reader
from loadax.row_index.scan import read_span
from loadax.writing.data_fingerprint import digest_of, identify, spread

CACHED = (
    "make such objects in a function with @functools.cache, and call it where they "
    "are used"
)
"""How changes of what a map holds become visible."""

_SAMPLE = 64  # rows whose contents go into the fingerprint of the data


def question_identity(
    functions: Sequence[Callable[..., Any]],
    known_as: list[str] | None,
    reader: Reader,
) -> tuple[list[str] | None, str | None]:
    """Identity of a question that is asked of each row; else why there is none.

    Args:
        functions: The function that is asked, if it is the user's.
        known_as: Identity that the verb or the user has given; None: the fingerprint of the function.
        reader: The rows and the maps before.

    Returns:
        The identity, as JSON, and None; or None, and why changes of the function or of a map can be invisible.
    """
    reason = unrecognised(
        [*functions, *(transform.function for transform in reader.maps)]
    )
    if known_as is not None and (reason is None or known_as[0] == "key"):
        return known_as, None
    if reason is None:
        return [
            "code",
            *(fingerprint(function).digest for function in functions),
        ], None
    return None, reason


def shared_identity(
    functions: Sequence[Callable[..., Any]],
    known_as: list[str] | None,
    reader: Reader,
    index: Any,
    executor: Engine | None,
    advice: str = CACHED,
) -> list[str] | None:
    """Identity of a question whose answers an index keeps; None, with a warning, if changes can be invisible.

    Args:
        functions: As of `question_identity`.
        known_as: As of `question_identity`.
        reader: As of `question_identity`.
        index: The index, for the warning.
        executor: Executor of the pass. None: threads of this process.
        advice: How to make changes visible.

    Raises:
        ArgumentError: When others need the index too; see `refuse_shared`.
    """
    known, reason = question_identity(functions, known_as, reader)
    if reason is not None:
        refuse_shared(index, f"{reason}; {advice}", executor)
    return known


def refuse_shared(index: Any, reason: str, executor: Engine | None) -> None:
    """Warns that an index is not used, for a reason; refuses one that others need too.

    Raises:
        ArgumentError: When there is an executor, or a run of several processes.
    """
    if executor is not None or this_process().count > 1:
        raise ArgumentError(
            f"index={str(index)!r} can't be shared: {reason}", argument="key"
        )
    log.warning("index %s is neither read nor written: %s", index, reason)


def data_identity(reader: Reader, met: NDArray[np.bool_]) -> dict[str, Any]:
    """Everything besides the question that the values depend on: rows and maps, but not shuffles and repeats."""
    data = {
        "rows": len(met),
        "met": "all"
        if met.all()
        else hashlib.sha256(np.packbits(met).data).hexdigest()[:16],
        "maps": reader.describe(),
        "functions": [
            fingerprint(transform.function).digest for transform in reader.maps
        ],
        "examples": _leaves(reader),
    }
    return {
        "dataset": data,
        "contents of a sample": _sample(reader, met),
        **identify(reader.source),
    }


def _leaves(reader: Reader) -> list[Any] | None:
    """Path, shape and dtype of each leaf; None if the datasets that were joined differ, so that no row tells them."""
    try:
        return describe_spec(reader.spec)
    except LeafError:
        return None


def _sample(reader: Reader, met: NDArray[np.bool_]) -> str:
    """Hash of the contents of a few evenly spaced rows."""
    rows = spread(len(met), _SAMPLE)
    if not met.all():
        listed = np.flatnonzero(met)
        rows = listed[spread(len(listed), _SAMPLE)]
    examples = (
        read_span(reader, rows, threading.Event()).examples() if len(rows) else ()
    )
    return digest_of(leaf for _, example in examples for leaf in leaf_arrays(example))
