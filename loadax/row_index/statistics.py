"""Statistics of leaves: a pass over the rows of a dataset, such as its training part."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import choice, number
from loadax.core.formatting import count_text
from loadax.core.spec import flatten_spec
from loadax.errors import ArgumentError, LeafTypeError
from loadax.kept.index_folder import Entry, IndexFolder
from loadax.kept.kept_pass import PassOptions, check_index, kept_pass
from loadax.kept.parts import Arrays
from loadax.plan.subset import met_rows
from loadax.protocols import Order
from loadax.reader import Reader
from loadax.row_index.build import Options
from loadax.row_index.leaf_summary import Floats, Summary, most_points
from loadax.row_index.scan import RowSpan, RowSpans, row_spans, threads_for

Per = Literal["column", "leaf"]

_TOGETHER = 1 << 17  # values that are summarised at once


@final
@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of one leaf over all rows of a dataset: arrays with a value for each column, or single values.

    Attributes:
        count: Number of finite values.
        missing: Number of other values: NaN and infinities, which the rest leaves out.
        mean: Their mean; NaN if there is none.
        std: Their standard deviation, of the whole population (`np.std`).
        least: The least one.
        most: The greatest one.
    """

    count: NDArray[np.int64]
    missing: NDArray[np.int64]
    mean: Floats
    std: Floats
    least: Floats
    most: Floats
    _summary: Summary

    @property
    def variance(self) -> Floats:
        """Square of `std`."""
        return self.std**2

    def quantile(self, fraction: float) -> Floats:
        """The value below which a fraction of the finite values lies, by linear interpolation.

        Of up to 1,024 values it is exact. Of more, it is a value whose rank is off by at most 0.2 % of their number
        (of leaves with more than 64 columns: by 2 / max(32, 65536 / columns)).

        Args:
            fraction: From 0 to 1.

        Returns:
            float64, shaped as `mean`.

        Raises:
            ArgumentError: If the fraction is not a number within 0 and 1.
        """
        fraction = number(
            "fraction", fraction, "one number from 0 to 1, such as 0.99"
        )
        if not 0 <= fraction <= 1:
            raise ArgumentError(
                f"fraction={fraction!r} is not within 0 and 1; pass such as 0.99",
                argument="fraction",
            )
        return self._summary.quantiles(fraction).reshape(self.mean.shape)

    def __repr__(self) -> str:
        values = ", ".join(
            f"{name}={np.array2string(getattr(self, name), precision=4, threshold=8)}"
            for name in ("count", "missing", "mean", "std", "least", "most")
        )
        return f"Statistics({values})"


@final
@dataclass(frozen=True)
class _Leaf:
    """A leaf that is looked at.

    Args:
        index: Its place among the leaves of an example.
        name: Its keys joined by dots.
        columns: Number of its columns; None: one value for all.
    """

    index: int
    name: str
    columns: int | None

    def values(self, span: RowSpan) -> NDArray[Any]:
        """Its values of some rows, as [values, columns]."""
        width = 1 if self.columns is None else self.columns
        column = span.column(self.index, self.name)
        if isinstance(column, np.ndarray):
            return _by_column(column, width)
        rows = [np.asarray(value) for value in column]
        for row, value in zip(span.rows.tolist(), rows, strict=True):
            if not np.can_cast(value.dtype, np.float64):
                raise LeafTypeError(
                    f"statistics: leaf {self.name!r} is {value.dtype} in row {row}, not "
                    "a real number; cast it in a map"
                )
            if self.columns is not None and value.shape[-1:] != (width,):
                raise LeafTypeError(
                    f"statistics: leaf {self.name!r} has {value.shape[-1:]} columns in "
                    f"row {row}, and {width} before; pass per='leaf' for one value of "
                    "all"
                )
        if not rows:
            return np.empty((0, width))
        return np.concatenate([_by_column(value, width) for value in rows])


def _by_column(values: NDArray[Any], width: int) -> NDArray[Any]:
    """The values as [values, width]; of arrays without columns, none."""
    return values.reshape(values.size // max(1, width), width)


@final
@dataclass(frozen=True)
class _SummaryWork:
    """Summaries of leaves over the spans of rows of each part; see `loadax.kept.pass_work.Work`.

    Args:
        rows: The rows.
        leaves: What is looked at.
    """

    rows: RowSpans
    leaves: Sequence[_Leaf]
    label: str = "statistics"
    unit: str = "row"

    @property
    def sizes(self) -> list[int]:
        return self.rows.sizes

    def compute(self, part: int, over: threading.Event) -> dict[str, NDArray[Any]]:
        """Arrays of the summaries of a part."""
        found: list[list[Summary]] = [[] for _ in self.leaves]
        for span in self.rows.of_part(part, over):
            for leaf, summaries in zip(self.leaves, found, strict=True):
                summaries.append(summary_of(leaf.values(span)))
        return _arrays([Summary.merged(summaries) for summaries in found])


def summary_of(values: NDArray[Any]) -> Summary:
    """Summary of an array[n, columns], a few at a time: as float64, all would take 40 times the memory of bytes."""
    rows = max(1, _TOGETHER // max(1, values.shape[1]))
    starts = range(0, max(1, len(values)), rows)
    return Summary.merged([Summary.of(values[at : at + rows]) for at in starts])


def statistics(
    order: Order, reader: Reader, named: bool, per: Per, options: Options
) -> dict[str, Statistics]:
    """Statistics of leaves over the rows of an order; see `Dataset.statistics`.

    Args:
        order: Order of the rows.
        reader: Reader of the rows.
        named: Whether the leaves were asked for by name: then all must be numbers.
        per: What has a value of its own.
        options: Options of the pass.

    Raises:
        ArgumentError: When a map is random, a leaf is not of numbers, or there are no rows.
    """
    choice("per", per, ("column", "leaf"))
    if reader.traits.random:
        raise ArgumentError(
            "statistics() reads rows once; call it before random maps and maps "
            "with_epoch=True"
        )
    met = met_rows(order, "statistics", reader.num_rows)
    if not met.any():
        raise ArgumentError("statistics() of no rows; call it on a dataset with rows")
    leaves = _leaves(reader, named, per)
    folder = IndexFolder(options.index) if options.index is not None else None
    check_index(folder, "statistics", count_text(len(met), "row"))
    known_as = None
    if folder is not None:
        from loadax.row_index.index_identity import shared_identity

        known_as = shared_identity([], None, reader, options.index, options.executor)
        if known_as is None:
            folder = None

    def merge(parts: Iterator[Arrays]) -> Entry:
        summaries = [_summaries(part, len(leaves)) for part in parts]
        merged = [Summary.merged(of_leaf) for of_leaf in zip(*summaries, strict=True)]
        return Entry(_arrays(merged), {})

    def identity() -> Mapping[str, Any]:
        from loadax.row_index.index_identity import data_identity

        asked = [[leaf.name, leaf.columns] for leaf in leaves]
        return {"leaves": asked, "maps": known_as, **data_identity(reader, met)}

    entry = kept_pass(
        folder,
        "statistics",
        identity,
        partial(_check, leaves=leaves),
        lambda: _SummaryWork(row_spans(reader, met), leaves),
        merge,
        PassOptions(
            threads_for(reader, options.workers), options.executor, options.progress
        ),
    )
    summaries = _summaries(entry.arrays, len(leaves))
    return {
        leaf.name: _statistics(leaf, summary)
        for leaf, summary in zip(leaves, summaries, strict=True)
    }


def _leaves(reader: Reader, named: bool, per: Per) -> list[_Leaf]:
    """The leaves that are numbers; all of them, if they were asked for by name."""
    specs, structure = flatten_spec(reader.spec)
    leaves = []
    for index, (name, spec) in enumerate(zip(structure.names, specs, strict=True)):
        if np.can_cast(spec.dtype, np.float64):
            columns = spec.shape[-1] if per == "column" and spec.shape else None
            leaves.append(_Leaf(index, name, columns))
        elif named:
            raise ArgumentError(
                f"leaf {name!r} is {spec.dtype}, of which there are no statistics; "
                "name leaves of real numbers, or cast it in a map",
                argument="leaves",
            )
    if not leaves:
        raise ArgumentError(
            f"statistics() of leaves {structure.names}, none of which is of real "
            "numbers; cast one in a map"
        )
    return leaves


def _statistics(leaf: _Leaf, summary: Summary) -> Statistics:
    shape = (leaf.columns,) if leaf.columns is not None else ()
    none = summary.number == 0
    variance = np.maximum(summary.squares, 0.0) / np.maximum(summary.number, 1)

    def known(values: Floats) -> Floats:
        return np.where(none, np.nan, values).reshape(shape)

    return Statistics(
        summary.number.reshape(shape),
        summary.missing.reshape(shape),
        known(summary.mean),
        known(np.sqrt(variance)),
        known(summary.least),
        known(summary.most),
        summary,
    )


def _arrays(summaries: Sequence[Summary]) -> dict[str, NDArray[Any]]:
    return {
        f"{field}-{leaf}": array
        for leaf, summary in enumerate(summaries)
        for field, array in summary._asdict().items()
    }


def _summaries(arrays: Arrays, leaves: int) -> list[Summary]:
    return [
        Summary(*(arrays[f"{field}-{leaf}"] for field in Summary._fields))
        for leaf in range(leaves)
    ]


def _check(entry: Entry, leaves: Sequence[_Leaf]) -> None:
    """Checks the arrays of an index."""
    for leaf, summary in zip(
        leaves, _summaries(entry.arrays, len(leaves)), strict=True
    ):
        columns = 1 if leaf.columns is None else leaf.columns
        for field, array in summary._asdict().items():
            kind = np.int64 if field in ("number", "missing") else np.float64
            shape = (columns,)
            if field in ("points", "weights"):
                shape += array.shape[1:2]
            if array.dtype != kind or array.shape != shape:
                raise ValueError(f"{field} of leaf {leaf.name!r} has another form")
        if summary.points.shape != summary.weights.shape:
            raise ValueError(f"points of leaf {leaf.name!r} lack their weights")
        if summary.points.shape[1] > most_points(columns):
            raise ValueError(f"leaf {leaf.name!r} has too many points")
