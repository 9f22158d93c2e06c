"""Trace: where the records of a batch came from, and the steps that meet a record."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from loadax.core.arguments import LARGEST, integer, shown
from loadax.core.formatting import table
from loadax.errors import ArgumentError, RowIndexError
from loadax.plan.batches import BatchPlan
from loadax.plan.find import Place, find
from loadax.plan.mix import ENDLESS
from loadax.protocols import Integers, Location
from loadax.redaction import redact
from loadax.sources.base import BaseSource, Child

_SHOWN = 10  # records of a trace that its text lists


class Record(NamedTuple):
    """What stands at one position of a batch.

    Args:
        position: of the batch.
        dataset: which part of a mixture or concatenation it comes from: the name of a part of `mix`, "part 0" of
            `concat`, a path such as "web/part 1" where these are nested; "" otherwise.
        row: of that part's source; -1 for padding.
        epoch: in which pass over that part.
        id: the row among those of all parts, as `loader.rows` gives it; -1 for padding.
        where: in which files, as far as the source knows; None when it does not.
        documents: what a packed row holds; None when it is none.
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
        """Whether no record stands here."""
        return self.id < 0

    def to_dict(self) -> dict[str, Any]:
        """The same, as JSON takes it."""
        where = None if self.where is None else [each._asdict() for each in self.where]
        documents = (
            None
            if self.documents is None
            else [getattr(each, "_asdict", lambda each=each: each)() for each in self.documents]
        )
        return {**self._asdict(), "where": where, "documents": documents}


@final
@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Where the records of a batch came from: `trace[position]` is a `Record`; iterating gives all of them.

    Args:
        step: of the run.
        positions: of the batch, those that were asked for.
        ids: of the rows there; -1 for padding.
        epochs: of each, in its part.
        datasets: what each one's part is called.
        rows: of that part's source.
        sources: which read them; None for padding.
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
        return (self._record(place) for place in range(len(self)))

    def __getitem__(self, position: int) -> Record:
        """What stands at a position of the batch.

        Raises:
            RowIndexError: when the trace does not have that position.
        """
        found = np.flatnonzero(self.positions == position)
        if not len(found):
            raise RowIndexError(
                f"position {position} is not in this trace of {len(self)} positions of step {self.step}"
            )
        return self._record(int(found[0]))

    def to_dicts(self) -> list[dict[str, Any]]:
        """All records, as JSON takes them."""
        return [record.to_dict() for record in self]

    def __repr__(self) -> str:
        named = any(self.datasets)
        lines = []
        for record in (self._record(place) for place in range(min(len(self), _SHOWN))):
            line = [str(record.position), *([record.dataset] * named)]
            lines.append(
                line + (["padding", "", ""] if record.padding else [str(record.row), str(record.epoch), _shown(record)])
            )
        more = f"… and {len(self) - _SHOWN} more\n" if len(self) > _SHOWN else ""
        header = ["position", *(["dataset"] * named), "row", "epoch", "where"]
        return f"step {self.step}\n{table(header, lines)}{more}".rstrip("\n")

    def _record(self, place: int) -> Record:
        source, row, epoch = self.sources[place], int(self.rows[place]), int(self.epochs[place])
        where = None if source is None else source.locate_visit(row, epoch)
        documents = None if source is None else source.documents(row)
        return Record(
            int(self.positions[place]),
            self.datasets[place],
            row,
            epoch,
            int(self.ids[place]),
            tuple(each._replace(file=redact(each.file)) for each in where) if where else None,
            tuple(documents) if documents else None,
        )


def trace(plan: BatchPlan, source: BaseSource, step: int, positions: Integers) -> Trace:
    """Where the records at these positions of a step came from.

    Args:
        plan: of the run.
        source: of the dataset.
        step: of the run.
        positions: of the batch.
    """
    visits = plan.visits(step, positions)
    rows = visits.rows.copy()
    datasets, sources = [""] * len(rows), [None] * len(rows)
    there = np.flatnonzero(rows >= 0)
    _look_up(source, "", there, rows, datasets, sources)
    return Trace(step, positions, visits.rows, visits.epochs, tuple(datasets), rows, tuple(sources))


def _look_up(
    source: BaseSource, name: str, places: Integers, rows: Integers, datasets: list[str], sources: list[Any]
) -> None:
    """Fills in the name and the source of the part of each of `places`, and turns its row into one of that source."""
    parts = _parts(source)
    if not parts:
        for place in places.tolist():
            datasets[place], sources[place] = name, source
        return
    owner = np.searchsorted([first for first, _ in parts], rows[places], side="right") - 1
    for number, (first, part) in enumerate(parts):
        mine = places[owner == number]
        rows[mine] -= first
        _look_up(part.source, _path(name, part.name), mine, rows, datasets, sources)


def find_places(
    plan: BatchPlan, source: BaseSource, row: int, dataset: str | None, epochs: Any, steps: Any
) -> list[Place]:
    """Where a run meets a row; see `Dataloader.find`.

    Raises:
        ArgumentError: when there is no such part, or the run has no end and nothing says where to look.
        RowIndexError: when there is no such row.
    """
    first, rows = (0, len(source)) if dataset is None else _part(source, dataset)
    if not 0 <= row < rows:
        of = "" if dataset is None else f" of {dataset!r}"
        packs = (
            "; these are packed rows: trace() tells which documents each holds"
            if source.documents(0) is not None
            else ""
        )
        raise RowIndexError(f"row {row}{of} is not there: rows are at least 0 and below {rows}{packs}")
    return find(plan, first + row, _steps_to_look_at(plan, epochs, steps))


def _steps_to_look_at(plan: BatchPlan, epochs: Any, steps: Any) -> range:
    if epochs is not None and steps is not None:
        raise ArgumentError(f"epochs={epochs!r} and steps={steps!r}: pass one of them")
    if steps is not None:
        chosen = _range("steps", steps)
        return range(chosen.start, max(chosen.start, min(chosen.stop, plan.end)))
    if plan.order.size >= ENDLESS:
        raise ArgumentError("this mixture never ends: pass steps=range(start, stop), the steps of the run to look at")
    if epochs is None:
        if plan.num_epochs is None:
            raise ArgumentError(
                "num_epochs=None: the run goes on for ever; pass epochs=range(start, stop) or steps=range(start, stop)"
            )
        return range(plan.num_steps or 0)
    chosen = _range("epochs", epochs)
    stop = chosen.stop if plan.num_epochs is None else min(chosen.stop, plan.num_epochs)
    if chosen.start >= stop:
        return range(0)
    first, last = plan.epoch_steps(chosen.start).start, plan.epoch_steps(stop - 1).stop
    return range(min(first, plan.end), min(last, plan.end))


def _range(name: str, value: Any) -> range:
    remedy = "an int, or a range of ints from 0 on, one after another"
    if not isinstance(value, range):
        only = integer(name, value, 0, remedy=remedy)
        return range(only, only + 1)
    if value.step != 1 or value.start < 0 or value.stop > LARGEST:
        raise ArgumentError(f"{name}={shown(value)}: pass {remedy}")
    return value


def _part(source: BaseSource, dataset: str) -> tuple[int, int]:
    """The number of the first row of a part, and how many rows it has."""
    parts = {name: (first, len(part)) for name, part, first in _all_parts(source, "", 0)}
    if not isinstance(dataset, str) or dataset not in parts:
        there = (
            f"the parts are {sorted(parts)}"
            if parts
            else "it is one dataset, neither mixed nor concatenated; leave it out"
        )
        raise ArgumentError(f"dataset={shown(dataset)} is no part of this loader's dataset: {there}")
    return parts[dataset]


def _all_parts(source: BaseSource, name: str, first: int) -> Iterator[tuple[str, BaseSource, int]]:
    for begin, part in _parts(source):
        path = _path(name, part.name)
        if part.name:
            yield path, part.source, first + begin
        yield from _all_parts(part.source, path, first + begin)


def _parts(source: BaseSource) -> list[tuple[int, Child]]:
    """The children whose rows are rows of the source, each with the number of its first row there."""
    return [(child.first_row, child) for child in source.children if child.first_row is not None]


def _path(above: str, name: str) -> str:
    return "/".join(filter(None, (above, name)))


def _shown(record: Record) -> str:
    if record.where is None and record.documents:
        return f"documents {', '.join(str(part.row) for part in record.documents[:4])}" + (
            " …" if len(record.documents) > 4 else ""
        )
    if record.where is None:
        return "not known"
    first, *others = record.where
    size = "" if first.first is None else f" bytes {first.first} to {first.last}"
    part = f" {first.part}" if first.part else ""
    return f"{first.file}{size}{part}" + (f" and {len(others)} more" if others else "")
