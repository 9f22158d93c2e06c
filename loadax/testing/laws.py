"""A law of a contract, and the error of its breach."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from loadax.core.formatting import some
from loadax.errors import ConformanceError


@final
@dataclass(frozen=True)
class Law:
    """A rule that every source or map must keep.

    Args:
        name: Name of the law in messages.
        contract: What the author has to do.
    """

    name: str
    contract: str

    def broken(self, subject: str, found: str) -> ConformanceError:
        """The error that says that `subject` breaks this law: `found` shows it."""
        return ConformanceError(f"{subject} breaks the law '{self.name}': {found}; {self.contract}")

    @contextmanager
    def during(self, subject: str, action: str) -> Iterator[None]:
        """Whatever the action raises breaks this law."""
        try:
            yield
        except ConformanceError:
            raise
        except Exception as error:
            raise self.broken(subject, f"{action} raised {show_error(error)}") from error


def show_rows(rows: Any) -> str:
    """The first few of `rows`."""
    return f"[{some(np.asarray(rows).tolist())}]"


def show_error(error: BaseException) -> str:
    """An exception in one line: its type and what it says."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
