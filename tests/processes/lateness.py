"""A process that comes late: the others must not wait for it.

Nor for its record of what decides the run, but for a limited time, which is shortened here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import jax

from loadax.loader.watch import hosts
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
    with patch.object(hosts, "FIRST_WAIT", 0.05):
        yield
    through[jax.process_index()].touch()
