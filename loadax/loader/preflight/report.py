"""Preflight: the report of `Dataloader.preflight`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

from loadax.core.arguments import integer
from loadax.core.formatting import count_text, size_text, some, table
from loadax.errors import ArgumentError

_SHOWN = 10  # entries of a list in the text
_LISTED = 100  # row ids in the text
_WIDTH = 100  # characters of an error in the text


class LeafShape(NamedTuple):
    """Shape of one leaf of a batch, and its dtype."""

    leaf: str
    shape: tuple[int, ...]
    dtype: str


class BatchShape(NamedTuple):
    """Shapes of the batches of some steps, for which a training step is compiled once.

    Args:
        first: First step.
        steps: Number of steps.
        leaves: Leaves of the batch.
    """

    first: int
    steps: int
    leaves: tuple[LeafShape, ...]


class FailedRow(NamedTuple):
    """A row that can't be read or mapped, which `MaskErrors` would mask.

    Args:
        row: Row id as in `Dataloader.rows`.
        epoch: First epoch in which it fails, for random maps; else 0.
        phases: Phases of a chain that read its dataset.
        dataset: Part of a mixture or concatenation, as in `trace`; "" without parts.
        dataset_row: Row of that part.
        file: File, and the first byte if it is known; "" if the source does not know it.
        error: The error.
    """

    row: int
    epoch: int
    phases: tuple[int, ...]
    dataset: str
    dataset_row: int
    file: str
    error: str


class LeafValues(NamedTuple):
    """Values of a leaf in the distinct rows, in the dtype of the batch.

    Args:
        leaf: Path of the leaf.
        phases: Phases of a chain that read it.
        least, most: Least and greatest finite value; None if there is none.
        not_finite: Row ids with NaN or an infinity.
        below, above: Row ids with a value out of `bounds`.
    """

    leaf: str
    phases: tuple[int, ...]
    least: float | None
    most: float | None
    not_finite: tuple[int, ...]
    below: tuple[int, ...]
    above: tuple[int, ...]

    @property
    def rows(self) -> list[int]:
        """Row ids of all of these, ascending."""
        return sorted({*self.not_finite, *self.below, *self.above})


class SourceReading(NamedTuple):
    """Reading of one source.

    Args:
        dataset: Part of a mixture or concatenation; "" without parts.
        phases: Phases of a chain that read it.
        rows: Rows that the planned steps read, repeated ones included.
        distinct: Rows that were read for this report.
        batch_bytes: Bytes of `rows` as they are in batches.
        stored_bytes: Bytes of `rows` in their files, by the mean of a sample of them; None if unknown.
        requests: Requests to remote storage for `rows`, by those for the distinct ones; 0 for local files.
        request_bytes: Bytes of these requests.
        seconds: Seconds in which one worker reads and maps `rows`, by the mean of the distinct ones.
        cpu_seconds: CPU time in these.
    """

    dataset: str
    phases: tuple[int, ...]
    rows: int
    distinct: int
    batch_bytes: int
    stored_bytes: int | None
    requests: int
    request_bytes: int
    seconds: float
    cpu_seconds: float


class SlowRows(NamedTuple):
    """Rows that were read together and took long; a slow row is alone.

    Args:
        first, last: First and last row id.
        rows: Number of rows.
        seconds: Seconds for a row; on a busy machine, some of these are waits for other threads.
        cpu_seconds: CPU time in these.
        phases: Phases of a chain that read them.
    """

    first: int
    last: int
    rows: int
    seconds: float
    cpu_seconds: float
    phases: tuple[int, ...]


class SlowFile(NamedTuple):
    """A file of slow rows.

    Args:
        file: Path or URL.
        rows: Number of its rows that were timed.
        seconds: Seconds for a row.
    """

    file: str
    rows: int
    seconds: float


@final
@dataclass(frozen=True)
class Preflight:
    """What `Dataloader.preflight` found in the rows of the planned steps, before the run.

    Printed, it is a summary; `to_dict()` has all of it for JSON.

    Attributes:
        steps: Number of planned steps.
        rows: Rows that these steps read, repeated ones included, without padding.
        distinct: Rows that were read: each once, or once an epoch where maps are random.
        failed: Rows that can't be read or mapped, ascending: those that `MaskErrors` would mask.
        values: Values by leaf, of leaves of numbers.
        shapes: Shapes of the batches, by first step. A step function is compiled once for each.
        sources: Reading of each source: rows, bytes, requests, seconds.
        slow_rows: Slowest rows first, at most 16.
        slow_files: Files with the slowest rows first, at most 64.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader, from_arrays
        >>> data = from_arrays({"x": np.array([0.5, 2.0, np.nan, 4.0])}).map(lambda row: row)
        >>> report = Dataloader(data, 2).preflight(bounds={"x": (0, 3)})
        >>> report.ok, report.quarantine(), report.values[0].not_finite, report.values[0].above
        (False, [], (2,), (3,))
    """

    steps: int
    rows: int
    distinct: int
    failed: tuple[FailedRow, ...]
    values: tuple[LeafValues, ...]
    shapes: tuple[BatchShape, ...]
    sources: tuple[SourceReading, ...]
    slow_rows: tuple[SlowRows, ...]
    slow_files: tuple[SlowFile, ...]

    @property
    def ok(self) -> bool:
        """Whether no row fails, and all values are finite and within their bounds."""
        return not self.failed and not any(leaf.rows for leaf in self.values)

    @property
    def compilations(self) -> int:
        """Number of different shapes of batches, for each of which a step function is compiled."""
        return len(self.shapes)

    @property
    def seconds(self) -> float:
        """Seconds in which one worker reads and maps all rows of the planned steps."""
        return sum(source.seconds for source in self.sources)

    @property
    def cpu_seconds(self) -> float:
        """CPU time in `seconds`; the rest is waiting for storage and for other threads."""
        return sum(source.cpu_seconds for source in self.sources)

    def quarantine(
        self,
        phase: int = 0,
        dataset: str | None = None,
        values: bool = False,
    ) -> list[int]:
        """Row ids that fail, ascending: for `Dataloader(quarantine=…)` or `Dataset.exclude`.

        Args:
            phase: Phase of a chain.
            dataset: Name of a part of a mixture or concatenation, whose own row ids to return, for its own `exclude`.
                None: row ids of the whole dataset.
            values: Whether to include rows whose values are not finite or out of bounds.

        Raises:
            ArgumentError: If no such part was read, or `values` are asked for of a part.
        """
        phase = integer("phase", phase, 0)
        failed = [row for row in self.failed if phase in row.phases]
        if dataset is None:
            rows = {row.row for row in failed}
            for leaf in self.values:
                if values and phase in leaf.phases:
                    rows.update(leaf.rows)
            return sorted(rows)
        known = sorted({source.dataset for source in self.sources})
        if dataset not in known or values:
            raise ArgumentError(
                f"quarantine(dataset={dataset!r}, values={values}): pass the name of "
                f"one of {known}, and values=False",
                argument="dataset",
            )
        return sorted({row.dataset_row for row in failed if row.dataset == dataset})

    def to_dict(self) -> dict[str, Any]:
        """All of the report as a JSON-serialisable dict, each entry with the names of its fields."""
        lists = {
            name: [entry._asdict() for entry in entries]
            for name, entries in vars(self).items()
            if isinstance(entries, tuple)
        }
        lists["shapes"] = [
            {**shape._asdict(), "leaves": [leaf._asdict() for leaf in shape.leaves]}
            for shape in self.shapes
        ]
        summary = {
            "ok": self.ok,
            "compilations": self.compilations,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self) | lists | summary))
        return plain

    def __repr__(self) -> str:
        flagged = sum(len(leaf.rows) for leaf in self.values)
        return (
            f"Preflight(steps={self.steps}, distinct={self.distinct}, "
            f"failed={len(self.failed)}, flagged={flagged}, "
            f"compilations={self.compilations})"
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        steps = count_text(self.steps, "step")
        rows = count_text(self.rows, "row")
        yield f"{steps}, {rows}, {self.distinct:,} of them distinct and read"
        yield from self._failed_lines()
        for leaf in self.values:
            yield from _value_lines(leaf)
        yield count_text(self.compilations, "shape") + " of batches to compile for"
        for shape in self.shapes[:_SHOWN]:
            leaves = ", ".join(
                f"{leaf or 'the batch'} {dtype}{list(extents)}"
                for leaf, extents, dtype in shape.leaves
            )
            steps = count_text(shape.steps, "step")
            yield f"  {steps} from step {shape.first} on: {leaves}"
        yield (
            f"one worker reads for {self.seconds:,.1f} s, "
            f"{self.cpu_seconds:,.1f} s of them on the CPU"
        )
        yield table(
            ("source", "rows", "distinct", "in batches", "stored", "requests", "s"),
            [_source_line(source) for source in self.sources],
        ).rstrip()
        if self.slow_rows:
            slow = self.slow_rows[0]
            yield f"slowest: {_slow_text(slow)}, {slow.seconds * 1e3:.3g} ms a row"
        if self.slow_files:
            file = self.slow_files[0]
            yield f"slowest file: {file.file}, {file.seconds * 1e3:.3g} ms a row"

    def _failed_lines(self) -> Iterator[str]:
        if not self.failed:
            yield "no row fails"
            return
        phases = sorted({phase for row in self.failed for phase in row.phases})
        for phase in phases:
            rows = self.quarantine(phase)
            where = ""
            if phases[-1]:
                where = f" in phase {phase}"
            yield f"{count_text(len(rows), 'row')} can't be read{where}:"
            listed = str(rows)
            if len(rows) > _LISTED:
                listed = f"[{some(rows, _LISTED)}]"
            yield f"  quarantine={listed}"
        for row in self.failed[:_SHOWN]:
            of = ""
            if row.dataset:
                of = f" (row {row.dataset_row} of {row.dataset})"
            file = ""
            if row.file:
                file = f", {row.file}"
            yield f"  row {row.row}{of}{file}: {row.error[:_WIDTH]}"
        if len(self.failed) > _SHOWN:
            yield f"  and {len(self.failed) - _SHOWN:,} more"


def _value_lines(leaf: LeafValues) -> Iterator[str]:
    kinds: Sequence[tuple[str, tuple[int, ...]]] = (
        ("not finite", leaf.not_finite),
        ("below the bounds", leaf.below),
        ("above the bounds", leaf.above),
    )
    for text, rows in kinds:
        if rows:
            name = leaf.leaf or "the example"
            yield f"{name}: {count_text(len(rows), 'row')} {text}: {some(rows)}"


def _source_line(source: SourceReading) -> list[str]:
    stored = "unknown"
    if source.stored_bytes is not None:
        stored = size_text(source.stored_bytes)
    requests = "none"
    if source.requests:
        requests = f"{source.requests:,} ({size_text(source.request_bytes)})"
    return [
        source.dataset or "(all)",
        f"{source.rows:,}",
        f"{source.distinct:,}",
        size_text(source.batch_bytes),
        stored,
        requests,
        f"{source.seconds:,.1f}",
    ]


def _slow_text(slow: SlowRows) -> str:
    if slow.rows == 1:
        return f"row {slow.first}"
    return f"{count_text(slow.rows, 'row')} from {slow.first} to {slow.last}"
