"""Laws of a contract, and their errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.formatting import some
from loadax.errors import ConformanceError


@final
class Law(NamedTuple):
    """A rule that every source or map must keep.

    Args:
        name: Name of the law in messages.
        contract: Duty of the author of the source or map.
    """

    name: str
    contract: str

    def broken(self, subject: str, evidence: str) -> ConformanceError:
        """The error that `subject` breaks this law, with evidence."""
        return ConformanceError(f"{subject} breaks the law '{self.name}': {evidence}; {self.contract}")

    @contextmanager
    def during(self, subject: str, action: str) -> Iterator[None]:
        """Turns any exception of an action into a breach of this law."""
        try:
            yield
        except ConformanceError:
            raise
        except Exception as error:
            raise self.broken(subject, f"{action} raised {show_error(error)}") from error


def show_rows(rows: Any) -> str:
    """Text of the first few of `rows`."""
    return f"[{some(np.asarray(rows).tolist())}]"


def show_error(error: BaseException) -> str:
    """Type and message of an exception."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")
