"""Figures of matplotlib, an optional dependency."""

from typing import TYPE_CHECKING

from loadax.errors import UnsupportedError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, otherwise: str) -> "Figure":
    """Makes an empty figure without a window, which notebooks show.

    Args:
        width: Width in inches.
        height: Height in inches.
        otherwise: Alternative without matplotlib, for the error.

    Raises:
        UnsupportedError: If matplotlib can't be imported.
    """
    try:
        import matplotlib.figure  # noqa: F401  # an error even where the line below finds its module loaded

        from loadax.loader.reports.notebook_figure import NotebookFigure
    except ImportError as error:
        raise UnsupportedError(
            f"images need matplotlib, which can't be imported ({error}); pip install matplotlib "
            f"(in a clone: pip install -e '.[plots]'), or {otherwise}"
        ) from error
    return NotebookFigure(figsize=(width, height), layout="constrained")
