"""PlannedRun: the distinct rows and the batch shapes of some steps of a run. Numbers alone: nothing is read."""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple, final

import numpy as np

from loadax.files.paths import is_remote
from loadax.loader.batch_spec import BatchLeaf
from loadax.loader.options import without
from loadax.loader.phase import Phase
from loadax.loader.pipeline import BatchForm
from loadax.loader.preflight.portion import (
    DistinctVisits,
    Portion,
    parts_of,
)
from loadax.loader.preflight.report import BatchShape, LeafShape
from loadax.protocols import Integers, Visits
from loadax.sources.base import walk

_AT_ONCE = 1 << 18  # visits


class PlannedRun(NamedTuple):
    """What some steps read.

    Args:
        portions: The distinct rows.
        shapes: Shapes of their batches, by first step.
        steps: Number of the steps.
    """

    portions: tuple[Portion, ...]
    shapes: tuple[BatchShape, ...]
    steps: int


class _FormRows(NamedTuple):
    """Distinct rows of the batches of one form in one phase.

    Args:
        phase: Index of the phase.
        form: Form of the batches.
        numbers: The visits as numbers; see `Portion`.
        counts: Number of visits of each part, repeated ones included.
    """

    phase: int
    form: BatchForm
    numbers: Integers
    counts: Integers


def plan_rows(
    phases: Sequence[Phase],
    ranges: Sequence[tuple[int, range]],
    first: Sequence[int],
) -> PlannedRun:
    """The rows and shapes of a run.

    Args:
        phases: Phases of the run.
        ranges: Index of each phase with steps, and its steps, counted in the phase.
        first: First step of each phase in the run.

    Raises:
        ArgumentError: If a random map meets an epoch that is too late to be counted.
    """
    found: list[_FormRows] = []
    shapes = _Shapes()
    for number, steps in ranges:
        forms = _forms_of(number, phases[number], steps, first[number], shapes)
        found += _without_crops(forms, bool(phases[number].plan.buckets))
    total = sum(len(steps) for _, steps in ranges)
    return PlannedRun(tuple(_portions(found)), shapes.listed(), total)


def _forms_of(
    number: int,
    phase: Phase,
    steps: range,
    first: int,
    shapes: "_Shapes",
) -> list[_FormRows]:
    """Rows of each form of batches of a phase."""
    plan = phase.plan
    options = phase.pipeline.options
    gathered: dict[int, tuple[BatchForm, DistinctVisits]] = {}
    for begin, end in pairwise([*plan.changes(steps), steps.stop]):
        form = phase.pipeline.form(begin)
        size = plan.segment_of(begin)[0].batch_size
        shapes.add(form, size, options.microbatches, first + begin, end - begin)
        known = gathered.get(id(form))
        if known is None:
            reader = form.dataset.reader
            distinct = DistinctVisits(parts_of(reader), reader.num_rows)
            known = gathered[id(form)] = (form, distinct)
        for visits in _visits(phase, range(begin, end), size):
            known[1].add(without(visits, options.quarantine))
    return [
        _FormRows(number, form, distinct.numbers, distinct.counts)
        for form, distinct in gathered.values()
    ]


def _visits(
    phase: Phase,
    steps: range,
    size: int,
) -> Iterator[Visits]:
    """Visits of steps of one shape, some steps at a time."""
    positions = np.arange(size)
    at_once = max(1, _AT_ONCE // size)
    for start in range(steps.start, steps.stop, at_once):
        some = range(start, min(start + at_once, steps.stop))
        yield phase.plan.visits_of(some, positions)


def _without_crops(forms: list[_FormRows], in_buckets: bool) -> list[_FormRows]:
    """The same rows, but each in its longest form alone: shorter ones are its first entries."""
    if in_buckets or len(forms) == 1:
        return forms
    kept: list[_FormRows] = []
    seen = np.empty(0, np.int64)
    for rows in sorted(forms, key=lambda rows: -_row_bytes(rows.form)):
        new = np.setdiff1d(rows.numbers, seen, assume_unique=True)
        seen = np.union1d(seen, new)
        kept.append(rows._replace(numbers=new))
    return kept


def _row_bytes(form: BatchForm) -> int:
    return sum(leaf.spec.nbytes for leaf in form.host_batch.leaves)


def _portions(found: Sequence[_FormRows]) -> Iterator[Portion]:
    """Joins the rows that phases of one dataset share."""
    same: dict[Any, list[_FormRows]] = {}
    for rows in found:
        dataset = rows.form.dataset
        dtypes = tuple(
            (name, leaf.spec, leaf.dtype) for name, leaf in _leaves(rows.form).items()
        )
        # maps may have no hash
        maps = tuple(map(id, dataset.maps))
        same.setdefault((id(dataset.source), maps, dtypes), []).append(rows)
    for several in same.values():
        form = several[0].form
        numbers = several[0].numbers
        for rows in several[1:]:
            numbers = np.union1d(numbers, rows.numbers)
        source = form.dataset.source
        addresses = chain.from_iterable(each.addresses for each in walk(source))
        leaves = _leaves(form)
        yield Portion(
            form.dataset.reader,
            tuple(leaves.values()),
            tuple(leaves),
            parts_of(form.dataset.reader),
            numbers,
            np.sum([rows.counts for rows in several], axis=0),
            tuple(dict.fromkeys(rows.phase for rows in several)),
            any(map(is_remote, addresses)),
        )


def _leaves(form: BatchForm) -> dict[str, BatchLeaf]:
    """Leaves of a batch on the host by name, without generated ones."""
    batch = form.host_batch
    return {
        name: leaf
        for name, leaf in zip(batch.structure.names, batch.leaves, strict=True)
        if leaf.source is not None
    }


@final
class _Shapes:
    """Counts the steps of each shape of a placed batch."""

    def __init__(self) -> None:
        self._steps: dict[tuple[LeafShape, ...], tuple[int, int]] = {}

    def add(
        self,
        form: BatchForm,
        size: int,
        microbatches: int,
        first: int,
        steps: int,
    ) -> None:
        """Counts steps of a form with batches of `size` rows, from step `first` of the run on."""
        rows: tuple[int, ...] = (size,)
        if microbatches > 1:
            rows = (microbatches, size // microbatches)
        leaves = tuple(
            LeafShape(name, (*rows, *leaf.spec.shape), str(leaf.dtype))
            for name, leaf in zip(
                form.batch.structure.names, form.batch.leaves, strict=True
            )
        )
        before = self._steps.get(leaves, (first, 0))
        self._steps[leaves] = (before[0], before[1] + steps)

    def listed(self) -> tuple[BatchShape, ...]:
        """The shapes, by first step."""
        listed = [
            BatchShape(first, steps, leaves)
            for leaves, (first, steps) in self._steps.items()
        ]
        return tuple(sorted(listed))
