"""Laws of a source that wraps others, and of rows that are read one by one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.core.tree import flatten
from loadax.protocols import Integers, Tree, Visits
from loadax.sources.base import BaseSource, Child
from loadax.testing.comparison import difference
from loadax.testing.laws import Law, show_rows
from loadax.testing.subject import Subject

EXAMPLES = Law("rows one by one", "entry i of examples(rows) must equal row rows[i] of read, in its own memory")
WRAPPER = Law(
    "a wrapper answers for what it wraps",
    "a source that wraps others must make the same claims about its rows as those, unless it changes that aspect",
)


def check_examples(subject: Subject) -> None:
    """Checks that rows read one by one equal those read together, and may be written to."""
    for rows in (subject.sample, subject.sample[::-1].copy(), subject.draw(len(subject.sample) + 2)):
        for example, row in zip(_examples(subject, subject.source, rows), rows.tolist(), strict=True):
            leaves, structure = flatten(example)
            if structure != subject.structures[row] and any(leaf.dtype.hasobject for leaf in subject.leaves):
                continue  # an object may be a container with its own leaves
            if structure != subject.structures[row]:
                raise EXAMPLES.broken(
                    subject.name,
                    f"row {row} has the leaves {structure.paths}, but {subject.structures[row].paths} when read alone",
                )
            subject.compare(_of_one(subject, leaves), np.array([row]), EXAMPLES, "read_examples")
            for leaf in leaves:
                if isinstance(leaf, np.ndarray) and not leaf.flags.writeable:
                    raise EXAMPLES.broken(subject.name, f"an array of row {row} can't be written to")
                if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
                    leaf[...] = np.zeros((), leaf.dtype)  # the next reads must not see it


def check_wrapper(subject: Subject) -> None:
    """Checks that a wrapper makes the same claims about its rows as the sources that it wraps."""
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
    if source.traits.concurrent_reads < inner.traits.concurrent_reads:
        raise WRAPPER.broken(
            subject.name, f"concurrent_reads is {source.traits.concurrent_reads}, that of {name} {inner.traits.concurrent_reads}"
        )
    if source.traits.num_maps < inner.traits.num_maps or len(source.describe()) < bool(inner.describe()):
        raise WRAPPER.broken(subject.name, f"it describes {source.describe()}, and {name} {inner.describe()}")
    for claim, own, its in (
        ("random", source.traits.random, inner.traits.random),
        ("runs_python", source.traits.runs_python, inner.traits.runs_python),
    ):
        if its and not own:
            raise WRAPPER.broken(subject.name, f"{claim} is {own}, that of {name} {its}")


def _check_rows(subject: Subject, child: Child, first: int) -> None:
    """Checks a child whose rows are rows of the source."""
    source, inner = subject.source, child.source
    if not 0 <= first <= first + len(inner) <= len(source):
        raise WRAPPER.broken(
            subject.name,
            f"{child.name or 'its source'} has {len(inner)} rows from row {first} on, of {len(source)} in all",
        )
    if len(inner) == len(source) and len(source.children) == 1 and source.traits.num_maps == inner.traits.num_maps:
        own, its = (None if either.chunks is None else np.asarray(either.chunks).tolist() for either in (source, inner))
        if own != its:
            raise WRAPPER.broken(
                subject.name, f"chunks are {show_rows(own or [])}, those of {inner.type_name} {show_rows(its or [])}"
            )
        if inner.traits.reads_examples and not source.traits.reads_examples:
            raise WRAPPER.broken(
                subject.name, f"it does not read rows one by one, but {inner.type_name} does, so they may differ"
            )
    for row in subject.sample[(subject.sample >= first) & (subject.sample < first + len(inner))].tolist():
        told = {
            "locate": (source.locate(row), inner.locate(row - first)),
            "documents": (source.documents(row), inner.documents(row - first)),
        }
        for method, (own, its) in told.items():
            if own != its:
                raise WRAPPER.broken(
                    subject.name, f"{method}({row}) is {own!r}, {inner.type_name}.{method}({row - first}) is {its!r}"
                )
        lengths, its_lengths = source.lengths(np.array([row])), inner.lengths(np.array([row - first]))
        if lengths is not None and (its_lengths is None or lengths.tolist() != its_lengths.tolist()):
            raise WRAPPER.broken(
                subject.name, f"lengths([{row}]) is {lengths!r}, that of {inner.type_name} {its_lengths!r}"
            )


def _check_rebuilt(subject: Subject, again: BaseSource) -> None:
    if len(again) != subject.length:
        raise WRAPPER.broken(
            subject.name, f"rebuilt on the same sources it has {len(again)} rows, not {subject.length}"
        )
    for example, row in zip(_examples(subject, again, subject.sample), subject.sample.tolist(), strict=True):
        leaves, paths = _of_one(subject, flatten(example)[0]), subject.structures[row].paths
        mismatch = difference(leaves, subject.expected(np.array([row])), paths, [row])
        if mismatch:
            raise WRAPPER.broken(subject.name, f"rebuilt on the same sources, {mismatch}")


def _examples(subject: Subject, source: BaseSource, rows: Integers) -> list[Tree]:
    asked = f"examples({show_rows(rows)})"
    with EXAMPLES.during(subject.name, asked):
        examples = source.read_examples(Visits(rows, np.zeros_like(rows)))
    if len(examples) != len(rows):
        raise EXAMPLES.broken(subject.name, f"{asked} gave {len(examples)} examples for {len(rows)} rows")
    return examples


def _of_one(subject: Subject, leaves: list[Any]) -> list[NDArray[Any]]:
    """Leaves of one example as a batch of one row."""
    batch = []
    for index, leaf in enumerate(leaves):
        array = np.asarray(leaf)[None] if not _is_object(subject, index) else np.empty(1, object)
        if array.dtype.hasobject and array.shape == (1,):
            array[0] = leaf
        batch.append(array)
    return batch


def _is_object(subject: Subject, index: int) -> bool:
    return subject.alike and subject.leaves[index].dtype.hasobject and not subject.leaves[index].shape
