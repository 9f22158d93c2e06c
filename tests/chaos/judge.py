"""The oracle of rows, and the count of what went wrong.

Row i has the id i + 1 and values that follow from it, so each row of a batch can be checked by itself, and an epoch by
its ids. A masked row holds zeros.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import LoadaxError

WIDTH = 4


def rows_of(count: int) -> dict[str, NDArray[Any]]:
    """The oracle's rows: `id` and `x`."""
    ids = np.arange(1, count + 1, dtype=np.int32)
    return {"id": ids, "x": values_of(ids)}


def values_of(ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """The values of rows, by their ids."""
    values: NDArray[np.float32] = ((ids[:, None] * 31 + np.arange(WIDTH)) % 1009).astype(np.float32)
    return values


@contextmanager
def log_to(hear: Callable[[str], None]) -> Iterator[None]:
    """Hands over each line that loadax logs, which is printed nowhere."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            hear(record.getMessage())

    log, handler = logging.getLogger("loadax"), Handler()
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.WARNING)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


@final
@dataclass
class Count:
    """What one kind of fault did.

    Args:
        faults: Faults that were injected.
        runs: Runs that had them.
        errors: Errors that were raised, all clear ones.
        masked: Rows that were masked.
        hangs: Runs that did not end.
        wrong: Rows with other values than the oracle's, or masked without a fault.
        lost: Rows that were neither in a batch, nor masked, nor behind an error; or were there twice.
        unclear: Errors that name neither row nor file, or are neither loadax's nor the source's own.
        told: One text for each finding.
    """

    faults: int = 0
    runs: int = 0
    errors: int = 0
    masked: int = 0
    hangs: int = 0
    wrong: int = 0
    lost: int = 0
    unclear: int = 0
    told: list[str] = field(default_factory=list)

    @property
    def findings(self) -> int:
        """Everything that must be 0."""
        return self.hangs + self.wrong + self.lost + self.unclear

    def batch(self, batch: Any, ids: Counter[int], bad: Collection[int] = ()) -> None:
        """Checks the rows of a batch, and adds their ids; rows of the ids `bad` must be masked."""
        found, values = np.asarray(batch["id"]), np.asarray(batch["x"])
        mask = np.asarray(batch.get("mask", np.ones(len(found), bool)))
        wrong = (values[mask] != values_of(found[mask])).any(1) | np.isin(found[mask], list(bad))
        zeros = found[~mask].any() or values[~mask].any()
        if wrong.any() or zeros:
            self.wrong += int(wrong.sum()) + int(bool(zeros))
            self.told.append(f"wrong rows: {found[mask][wrong]}")
        self.masked += int((~mask).sum())
        ids.update(found[mask].tolist())

    def epoch(self, ids: Counter[int], expected: Collection[int]) -> None:
        """Checks that an epoch had each of the expected ids once."""
        if ids != Counter(expected):
            missing, more = Counter(expected) - ids, ids - Counter(expected)
            self.lost += missing.total() + more.total()
            self.told.append(f"lost: {dict(missing)}, too often: {dict(more)}")

    def error(self, error: BaseException, names: Collection[str], own: type[BaseException] | None = None) -> None:
        """Checks that an error is clear: of loadax or of the type `own`, and with one of the names in it."""
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        named = any(re.search(rf"(?<!\d){re.escape(name)}(?!\d)", text) for name in names)
        if named and (isinstance(error, LoadaxError) or (own is not None and isinstance(error, own))):
            self.errors += 1
        else:
            self.unclear += 1
            self.told.append(f"unclear: {type(error).__name__}: {text}")


def table(counts: dict[str, Count]) -> Iterator[str]:
    """The counts as lines of a Markdown table, with their sum."""
    columns = ("faults", "runs", "errors", "masked", "hangs", "wrong", "lost", "unclear")
    yield f"| fault | {' | '.join(columns)} |"
    yield "|---|" + "---:|" * len(columns)
    for name, count in counts.items():
        yield f"| {name} | " + " | ".join(f"{getattr(count, column):,}" for column in columns) + " |"
    sums = [sum(getattr(count, column) for count in counts.values()) for column in columns]
    yield "| all | " + " | ".join(f"{number:,}" for number in sums) + " |"
