"""Trace: the origin of a batch's records, and the steps that read a record."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.arguments import LARGEST, integer, shown
from loadax.core.formatting import count_text, table
from loadax.errors import ArgumentError, RowIndexError
from loadax.plan.find import StepPosition, find
from loadax.plan.mix import ENDLESS
from loadax.plan.steps import Steps
from loadax.protocols import Integers, Location
from loadax.redaction import redact
from loadax.sources.base import BaseSource, all_parts

_SHOWN = 10  # records in the text of a trace


class Record(NamedTuple):
    """The record at one position of a batch.

    Attributes:
        position: Position in the batch.
        dataset: Part of a mixture or concatenation: the name of a part of `mix`, "part 0" of `concat`, or a path such
            as "web/part 1" if these are nested; else "".
        row: Row of that part's source; -1 for padding.
        epoch: Epoch of that part.
        id: Row id as in `loader.rows`; -1 for padding.
        where: Files and byte ranges; None if the source does not know them.
        documents: Documents of a packed row; None for other rows.
    """

    position: int
    dataset: str
    row: int
    epoch: int
    id: int
    where: tuple[Location, ...] | None
    documents: tuple[Any, ...] | None

    @property
    def padding(self) -> bool:
        """Whether the position is padding."""
        return self.id < 0

    def to_dict(self) -> dict[str, Any]:
        """The record as a JSON-serialisable dict."""
        where = self.where and [location._asdict() for location in self.where]
        documents = self.documents and [
            part._asdict() if hasattr(part, "_asdict") else part
            for part in self.documents
        ]
        return {**self._asdict(), "where": where, "documents": documents}


@final
@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The origin of a batch's records: `trace[position]` is a `Record`, and iteration yields all of them.

    Args:
        step: Step of the run.
        positions: Positions in the batch, int64[n].
        ids: Row ids, int64[n]; -1 for padding.
        epochs: Epochs of the parts, int64[n].
        datasets: Names of the parts.
        rows: Rows of the parts' sources, int64[n].
        sources: Sources of the parts; None for padding.
    """

    step: int
    positions: Integers
    ids: Integers
    epochs: Integers
    datasets: tuple[str, ...]
    rows: Integers
    sources: tuple[BaseSource | None, ...]

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[Record]:
        return (self._record(index) for index in range(len(self)))

    def __getitem__(self, position: int) -> Record:
        """The record at a position of the batch.

        Raises:
            RowIndexError: If the trace does not have that position.
        """
        indices = np.flatnonzero(self.positions == position)
        if not len(indices):
            raise RowIndexError(
                f"position {position} is not in this trace of "
                f"{count_text(len(self), 'position')}; pass one of trace.positions"
            )
        return self._record(int(indices[0]))

    def __repr__(self) -> str:
        named = any(self.datasets)
        lines = []
        for record in islice(self, _SHOWN):
            if record.padding:
                what = ["padding", "", ""]
            else:
                what = [str(record.row), str(record.epoch), _shown(record)]
            lines.append([str(record.position), *([record.dataset] * named), *what])
        if len(self) > _SHOWN:
            more = f"… and {len(self) - _SHOWN} more\n"
        else:
            more = ""
        header = ["position", *(["dataset"] * named), "row", "epoch", "where"]
        return f"step {self.step}\n{table(header, lines)}{more}".rstrip("\n")

    def _record(self, index: int) -> Record:
        source = self.sources[index]
        row = int(self.rows[index])
        epoch = int(self.epochs[index])
        if source is None:
            locations = None
        else:
            locations = source.locate_visit(row, epoch)
        if source is None:
            documents = None
        else:
            documents = source.documents(row)
        return Record(
            int(self.positions[index]),
            self.datasets[index],
            row,
            epoch,
            int(self.ids[index]),
            tuple(
                location._replace(file=redact(location.file))
                for location in locations
            )
            if locations
            else None,
            tuple(documents) if documents else None,
        )


def trace(plan: Steps, source: BaseSource, step: int, positions: Integers) -> Trace:
    """Traces the records at some positions of a step.

    Args:
        plan: Plan of the run.
        source: Source of the dataset.
        step: Step of the run.
        positions: Positions in the batch, int64[n].
    """
    visits = plan.visits(step, positions)
    # Those that consist of no others; -1 is padding.
    parts = [
        part
        for part in all_parts(source)
        if all(child.first_row is None for child in part[1].children)
    ]
    names, sources, firsts = zip(*parts, strict=True)
    owners = np.searchsorted(firsts, visits.rows, side="right") - 1
    rows = np.where(visits.rows < 0, -1, visits.rows - np.array(firsts)[owners])
    datasets = tuple("" if owner < 0 else names[owner] for owner in owners.tolist())
    found = tuple(None if owner < 0 else sources[owner] for owner in owners.tolist())
    return Trace(step, positions, visits.rows, visits.epochs, datasets, rows, found)


def find_places(
    plan: Steps,
    first_step: int,
    source: BaseSource,
    row: int,
    dataset: str | None,
    epochs: Any,
    steps: Any,
) -> list[StepPosition]:
    """Finds the steps and positions at which a phase that begins at `first_step` reads a row; see `Dataloader.find`.

    Raises:
        ArgumentError: If there is no such part, or the run is infinite and neither epochs nor steps are given.
        RowIndexError: If the row is out of range.
    """
    if dataset is None:
        first, rows = (0, len(source))
    else:
        first, rows = _part(source, dataset)
    if not 0 <= row < rows:
        if dataset is None:
            of = ""
        else:
            of = f" of {dataset!r}"
        raise RowIndexError(
            f"row {row}{of} is out of range: pass a row of at least 0 and below "
            f"{rows}"
        )
    found = find(plan, first + row, _steps_to_look_at(plan, epochs, steps))
    return [StepPosition(first_step + step, position) for step, position in found]


def _steps_to_look_at(plan: Steps, epochs: Any, steps: Any) -> range:
    if epochs is not None and steps is not None:
        raise ArgumentError(
            f"epochs={epochs!r} and steps={steps!r}: pass one of them"
        )
    if steps is not None:
        chosen = _range("steps", steps)
        return range(chosen.start, max(chosen.start, min(chosen.stop, plan.end)))
    if plan.order.size >= ENDLESS or (epochs is None and plan.num_epochs is None):
        raise ArgumentError(
            "the run is infinite: pass steps=range(start, stop), the steps to search"
        )
    if epochs is None:
        return range(plan.num_steps or 0)
    chosen = _range("epochs", epochs)
    if plan.num_epochs is None:
        stop = chosen.stop
    else:
        stop = min(chosen.stop, plan.num_epochs)
    if chosen.start >= stop:
        return range(0)
    first = plan.epoch_steps(chosen.start).start
    last = plan.epoch_steps(stop - 1).stop
    return range(min(first, plan.end), min(last, plan.end))


def _range(name: str, value: Any) -> range:
    remedy = "an int, or a range of consecutive ints from 0 on"
    if not isinstance(value, range):
        only = integer(name, value, 0, remedy=remedy)
        return range(only, only + 1)
    if value.step != 1 or value.start < 0 or value.stop > LARGEST:
        raise ArgumentError(f"{name}={shown(value)}: pass {remedy}")
    return value


def _part(source: BaseSource, dataset: str) -> tuple[int, int]:
    """First row id and number of rows of a part."""
    parts: dict[str, tuple[int, int]] = {}
    for name, part, first in all_parts(source):
        if name:
            parts.setdefault(name, (first, len(part)))
    if not isinstance(dataset, str) or dataset not in parts:
        if parts:
            known = f"the parts are {sorted(parts)}"
        else:
            known = "it is neither mixed nor concatenated, so leave dataset= out"
        raise ArgumentError(
            f"dataset={shown(dataset)} is not a part of this loader's dataset: "
            f"{known}"
        )
    return parts[dataset]


def _shown(record: Record) -> str:
    if record.where is None:
        rows = [str(part.row) for part in record.documents or ()]
        if rows:
            return f"documents {', '.join(rows[:4])}{' …' if len(rows) > 4 else ''}"
        return "unknown"
    first, *others = record.where
    if first.first is None:
        size = ""
    else:
        size = f" bytes {first.first} to {first.last}"
    if first.part:
        part = f" {first.part}"
    else:
        part = ""
    return f"{first.file}{size}{part}" + (
        f" and {len(others)} more" if others else ""
    )
