"""A law of a contract, and in which words its breach is told."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from loadax.core.formatting import some
from loadax.errors import ConformanceError


@final
@dataclass(frozen=True)
class Law:
    """What must hold.

    Args:
        name: by which a message calls it.
        contract: what the author has to see to.
    """

    name: str
    contract: str

    def broken(self, subject: str, found: str) -> ConformanceError:
        """The error that says of `subject` that this law does not hold for it: `found` shows it."""
        return ConformanceError(f"{subject} breaks the law '{self.name}': {found}; {self.contract}")


def show_rows(rows: Any) -> str:
    """The first few of `rows`."""
    return f"[{some(np.asarray(rows).tolist())}]"


def show_error(error: BaseException) -> str:
    """An exception in one line: its type and what it says."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
