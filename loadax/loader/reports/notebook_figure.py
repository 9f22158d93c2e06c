"""A figure that notebooks show; imports matplotlib."""

import io
from typing import final

from matplotlib.figure import Figure


@final
class NotebookFigure(Figure):
    """A figure that shows itself, also in a notebook that never imports `matplotlib.pyplot`."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
