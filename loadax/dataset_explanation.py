"""DatasetExplanation: what a dataset is made of, and what its order promises; the result of `Dataset.explain`."""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, final

from loadax.core.formatting import count_text, size_text
from loadax.core.replacements import missing_attribute
from loadax.core.spec import flatten_spec
from loadax.errors import StreamError
from loadax.plan.mix import ENDLESS
from loadax.plan.order import has_stream
from loadax.plan.part_orders import OrderOfParts
from loadax.protocols import Order
from loadax.reader import Reader
from loadax.redaction import redact

if TYPE_CHECKING:
    from loadax.pictures.figure import Picture
    from loadax.pictures.panels import Panels

_SHOWN_PARTS = 16
_STREAM = "known when they are read, of a stream"


@final
@dataclass(frozen=True, eq=False, repr=False)
class DatasetExplanation:
    """Facts of a dataset.

    `print` shows them, `plot` draws its order, and `to_dict()` is for programs.

    Args:
        data: Source of the rows.
        order: Verbs of the dataset.
        rows: Rows of an epoch. None: there is no length, or it depends on the batch size.
        length: The same as text.
        parts: Name, and rows of an epoch, of each dataset of a mixture or concatenation; None: there is no length.
        promises: What the order promises, a sentence each.
        leaves: Leaves of an example, with dtype and shape.
        row_bytes: Bytes of an example.
        panels: Makes the panels of `plot`.
    """

    data: str
    order: tuple[str, ...]
    rows: int | None
    length: str
    parts: tuple[tuple[str, int | None], ...]
    promises: tuple[str, ...]
    leaves: tuple[str, ...]
    row_bytes: int
    panels: "Callable[[], Panels]"

    if not TYPE_CHECKING:  # type checkers must still report misspelt names
        __getattr__ = missing_attribute

    def plot(self, *panels: str) -> "Picture":
        """Draws the order; `plot().savefig("order.svg")` saves it.

        Takes a second at most: of many rows, it shows evenly spaced ones, and says so.

        Args:
            panels: Panels to draw, of those that the dataset has: "mixture", shares of datasets in an epoch; "rows",
                the row at each position; "packing", documents in packed rows; "lengths", those of documents. None: all
                of them.

        Returns:
            A `matplotlib.figure.Figure` in the style of `matplotlib.rcParams`, which notebooks show as SVG.

        Raises:
            ArgumentError: If the dataset has no such panel.
            StreamError: If the rows come from a stream.
            ScheduleError: If a mixture is scheduled by step, which a loader alone can draw.
            UnsupportedError: If matplotlib is not installed; says what to install.
        """
        from loadax.pictures.panels import draw

        return draw(self.panels(), panels)

    def to_dict(self) -> dict[str, Any]:
        """The facts as a JSON-serialisable dict."""
        return {
            "data": self.data,
            "order": list(self.order),
            "rows": self.rows,
            "parts": [list(part) for part in self.parts],
            "promises": list(self.promises),
            "leaves": list(self.leaves),
            "row_bytes": self.row_bytes,
        }

    def __str__(self) -> str:
        unknown = _STREAM if self.length == _STREAM else "endless"
        parts = [
            f"{name}: {_rows_text(rows, unknown)}"
            for name, rows in self.parts[:_SHOWN_PARTS]
        ]
        more = len(self.parts) - _SHOWN_PARTS
        if more > 0:
            parts.append(f"and {more:,} more")
        facts = {
            "data": [self.data],
            "order": list(self.order),
            "rows": [self.length],
            "parts": parts,
            "promises": list(self.promises),
            "leaves": list(self.leaves),
            "a row": [size_text(self.row_bytes)],
        }
        return "".join(
            f"{name if index == 0 else '':10}{line}\n"
            for name, lines in facts.items()
            for index, line in enumerate(lines)
        )

    def _repr_html_(self) -> str:
        return "<pre>" + escape(str(self)) + "</pre>"

    def __repr__(self) -> str:
        return f"<DatasetExplanation of {redact(self.data)}; print it, or draw it: .plot()>"


def explain_dataset(
    order: Order, reader: Reader, verbs: tuple[str, ...]
) -> DatasetExplanation:
    """Explains a dataset.

    Args:
        order: Order of its rows.
        reader: Source and maps.
        verbs: Its verbs as text.
    """
    specs, structure = flatten_spec(reader.spec)
    leaves = [
        f"{path or 'the example'} {spec.dtype}{list(spec.shape) or ''}"
        for path, spec in zip(structure.paths, specs, strict=True)
    ]
    parts: list[tuple[str, int | None]] = []
    if isinstance(order, OrderOfParts):
        parts = [
            (name, _size_of(part))
            for name, part in zip(order.part_names, order.parts, strict=True)
        ]
    if has_stream(order):
        unknown = _STREAM
    elif order.by_step:
        unknown = "depend on the batch size, as the weights follow its steps"
    else:
        unknown = "endless"

    def panels() -> "Panels":
        if has_stream(order):
            raise StreamError("explain().plot()")
        from loadax.pictures.order_panels import order_panels

        return order_panels(order, reader)

    return DatasetExplanation(
        data=redact(repr(reader.source)),
        order=verbs,
        rows=_size_of(order),
        length=_rows_text(_size_of(order), unknown),
        parts=tuple(parts),
        promises=tuple(_promises(order)),
        leaves=tuple(leaves),
        row_bytes=sum(spec.nbytes for spec in specs),
        panels=panels,
    )


def _size_of(order: Order) -> int | None:
    """Rows of an epoch; None: endless, or unknown."""
    if has_stream(order) or order.by_step or order.size >= ENDLESS:
        return None
    return order.size


def _rows_text(rows: int | None, unknown: str) -> str:
    if rows is None:
        return unknown
    return f"{count_text(rows, 'row')} an epoch"


def _promises(order: Order) -> list[str]:
    if has_stream(order):
        return ["rows in the order of the stream's lanes, which states resume"]
    if order.varies:
        text = "each epoch has another order, which follows from the seed"
    else:
        text = "the same order in every epoch"
    if order.repeats:
        often = "an epoch may have a row several times"
    else:
        often = "an epoch has a row at most once"
    return [text, often]
