"""Figures of matplotlib, which is an extra."""

from typing import TYPE_CHECKING

from loadax.errors import UnsupportedError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, otherwise: str) -> "Figure":
    """An empty figure that belongs to no window.

    Args:
        width: Inches.
        height: Inches.
        otherwise: What needs no matplotlib; ends the message.

    Raises:
        UnsupportedError: When matplotlib can't be imported.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(
            f"an image is drawn by matplotlib, which can't be imported ({error}); pip install matplotlib "
            f"(in a clone: pip install -e '.[plots]'), or {otherwise}"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")
