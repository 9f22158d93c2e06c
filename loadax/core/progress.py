"""A bar on the terminal, for what takes minutes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, total: int, unit: str, wanted: bool | None) -> Iterator[Callable[[int], object]]:
    """Gives a function that is called with how much more was done.

    Args:
        what: stands before the bar.
        total: how much there is to do.
        unit: of what: `row` or `B`.
        wanted: whether to show it; None: when stderr is a terminal, so that a log file is not filled with bars.
    """
    shown = sys.stderr.isatty() if wanted is None else wanted
    if not shown:
        yield _nothing
        return
    from tqdm import tqdm

    with tqdm(
        desc=what, total=total, unit=unit, unit_scale=True, unit_divisor=1024 if unit == "B" else 1000, file=sys.stderr
    ) as bar:
        yield bar.update


def _nothing(_more: int) -> None:
    pass
