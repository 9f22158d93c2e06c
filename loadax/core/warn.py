"""Warnings that point to the user's line."""

import sys
import warnings
from types import FrameType

# Modules whose functions call those of this package in its name, as `cached_property` does.
_INSIDE = ("loadax", "functools", "contextlib")


def warn_user(text: str) -> None:
    """Warns with the line of the nearest caller outside of this package."""
    level = 1
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - `skip_file_prefixes` needs Python 3.12
    while (
        frame is not None
        and str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE
    ):
        level += 1
        frame = frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)
