"""Progress bar for long operations."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loadax.redaction import redact


@contextmanager
def progress_bar(
    label: str, total: int, unit: str, wanted: bool | None
) -> Iterator[Callable[[int], object]]:
    """Shows a progress bar; yields a function to call with the number of units done since the last call.

    Args:
        label: Label in front of the bar.
        total: Number of units.
        unit: Unit: `row` or `B`.
        wanted: Whether to show the bar; None: only if stderr is a terminal, to keep bars out of log files.
    """
    if wanted is None:
        shown = sys.stderr.isatty()
    else:
        shown = wanted
    if not shown:
        yield lambda _: None
        return
    from tqdm import tqdm

    if unit == "B":
        divisor = 1024
    else:
        divisor = 1000
    with tqdm(
        desc=redact(label),
        total=total,
        unit=unit,
        unit_scale=True,
        unit_divisor=divisor,
        file=sys.stderr,
    ) as bar:
        yield bar.update
