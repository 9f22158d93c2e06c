"""A process that comes late: the others must not wait for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from tests.limits import until


@contextmanager
def first_process_last(folder: str) -> Iterator[None]:
    """What is done here the first process begins when all others are through with it.

    When they wait for it, it never begins, and fails.

    Args:
        folder: an empty one that all see.
    """
    through = [Path(folder, f"through-{process}") for process in range(jax.process_count())]
    if jax.process_index() == 0:
        until(lambda: all(path.exists() for path in through[1:]))
    yield
    through[jax.process_index()].touch()
