"""Warnings that point to the user's line."""

import sys
import warnings
from types import FrameType


def warn_user(text: str) -> None:
    """Warns with the line of the nearest caller outside of this package."""
    level = 1
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - `skip_file_prefixes` needs Python 3.12
    while frame is not None and _is_inside(frame.f_globals.get("__name__", "")):
        level += 1
        frame = frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)


def _is_inside(module: str) -> bool:
    return module.partition(".")[0] == "loadax"
