"""The laws of a source that reads from others, and of rows that are read one by one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.tree import flatten
from loadax.protocols import Integers, Tree, Visits
from loadax.sources.base import BaseSource, Child
from loadax.testing.comparison import difference
from loadax.testing.laws import Law, show_rows
from loadax.testing.subject import Subject

EXAMPLES = Law(
    "rows one by one", "entry i of examples(rows) must be the row rows[i] as read gives it, in memory of its own"
)
WRAPPER = Law(
    "a wrapper answers for what it wraps",
    "a source that reads from others must say of its rows what those say of them, unless it changes just that",
)


def check_examples(subject: Subject) -> None:
    """Rows that are read one by one are those that are read together, and may be written to."""
    for rows in (subject.sample, subject.sample[::-1].copy(), subject.draw(len(subject.sample) + 2)):
        for example, row in zip(_examples(subject, subject.source, rows), rows.tolist(), strict=True):
            leaves, structure = flatten(example)
            if structure != subject.structures[row] and any(leaf.dtype.hasobject for leaf in subject.leaves):
                continue  # an object may be a container, which has leaves of its own
            if structure != subject.structures[row]:
                raise EXAMPLES.broken(
                    subject.name,
                    f"row {row} has the leaves {structure.paths}, {subject.structures[row].paths} by itself",
                )
            subject.compare(_of_one(subject, leaves), np.array([row]), EXAMPLES, "read_examples")
            for leaf in leaves:
                if isinstance(leaf, np.ndarray) and not leaf.flags.writeable:
                    raise EXAMPLES.broken(subject.name, f"an array of row {row} can't be written to")
                if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
                    leaf[...] = np.zeros((), leaf.dtype)  # the next reads must not see it


def check_wrapper(subject: Subject) -> None:
    """What a source says of its rows is what the sources say that it reads them from."""
    source = subject.source
    for child in source.children:
        _check_claims(subject, child)
        if child.first_row is not None:
            _check_rows(subject, child, child.first_row)
    if source.children:
        _check_rebuilt(subject, source.map_children(lambda child: child.source))


def _check_claims(subject: Subject, child: Child) -> None:
    source, inner = subject.source, child.source
    name = f"{child.name or 'its source'} ({inner.type_name})"
    if source.concurrent_reads < inner.concurrent_reads:
        raise WRAPPER.broken(
            subject.name, f"concurrent_reads is {source.concurrent_reads}, that of {name} {inner.concurrent_reads}"
        )
    if source.num_maps < inner.num_maps or len(source.describe()) < bool(inner.describe()):
        raise WRAPPER.broken(subject.name, f"it describes {source.describe()}, and {name} {inner.describe()}")
    for claim, mine, its in (
        ("random", source.random, inner.random),
        ("runs_python", source.runs_python, inner.runs_python),
    ):
        if its and not mine:
            raise WRAPPER.broken(subject.name, f"{claim} is {mine}, that of {name} {its}")


def _check_rows(subject: Subject, child: Child, first: int) -> None:
    """For a child whose rows are rows of the source."""
    source, inner = subject.source, child.source
    if not 0 <= first <= first + len(inner) <= len(source):
        raise WRAPPER.broken(
            subject.name,
            f"the rows of {child.name or 'its source'} begin at {first} and are {len(inner)}, of {len(source)} in all",
        )
    if len(inner) == len(source) and len(source.children) == 1 and source.num_maps == inner.num_maps:
        mine, its = (None if each.chunks is None else np.asarray(each.chunks).tolist() for each in (source, inner))
        if mine != its:
            raise WRAPPER.broken(
                subject.name, f"chunks are {show_rows(mine or [])}, those of {inner.type_name} {show_rows(its or [])}"
            )
        if inner.reads_examples and not source.reads_examples:
            raise WRAPPER.broken(
                subject.name, f"rows don't come one by one, and those of {inner.type_name} do, so they may differ"
            )
    for row in subject.sample[(subject.sample >= first) & (subject.sample < first + len(inner))].tolist():
        told = {
            "locate": (source.locate(row), inner.locate(row - first)),
            "documents": (source.documents(row), inner.documents(row - first)),
        }
        for what, (mine, its) in told.items():
            if mine != its:
                raise WRAPPER.broken(
                    subject.name, f"{what}({row}) is {mine!r}, {inner.type_name}.{what}({row - first}) is {its!r}"
                )
        lengths, its_lengths = source.lengths(np.array([row])), inner.lengths(np.array([row - first]))
        if lengths is not None and (its_lengths is None or lengths.tolist() != its_lengths.tolist()):
            raise WRAPPER.broken(
                subject.name, f"lengths([{row}]) is {lengths!r}, that of {inner.type_name} {its_lengths!r}"
            )


def _check_rebuilt(subject: Subject, again: BaseSource) -> None:
    if len(again) != subject.length:
        raise WRAPPER.broken(subject.name, f"with the same sources anew it has {len(again)} rows, not {subject.length}")
    for example, row in zip(_examples(subject, again, subject.sample), subject.sample.tolist(), strict=True):
        leaves, paths = _of_one(subject, flatten(example)[0]), subject.structures[row].paths
        found = difference(leaves, subject.expected(np.array([row])), paths, [row])
        if found:
            raise WRAPPER.broken(subject.name, f"with the same sources anew, {found}")


def _examples(subject: Subject, source: BaseSource, rows: Integers) -> list[Tree]:
    asked = f"examples({show_rows(rows)})"
    with EXAMPLES.during(subject.name, asked):
        examples = source.read_examples(Visits(rows, np.zeros_like(rows)))
    if len(examples) != len(rows):
        raise EXAMPLES.broken(subject.name, f"{asked} gave {len(examples)} examples for {len(rows)} rows")
    return examples


def _of_one(subject: Subject, leaves: list[Any]) -> list[NDArray[Any]]:
    """The leaves of one example as a batch of one has them."""
    batch = []
    for number, leaf in enumerate(leaves):
        array = np.asarray(leaf)[None] if not _is_object(subject, number) else np.empty(1, object)
        if array.dtype.hasobject and array.shape == (1,):
            array[0] = leaf
        batch.append(array)
    return batch


def _is_object(subject: Subject, number: int) -> bool:
    return subject.alike and subject.leaves[number].dtype.hasobject and not subject.leaves[number].shape
