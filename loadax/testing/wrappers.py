"""Laws of a source that wraps others, and of rows that are read one by one."""

from typing import Any

import numpy as np

from loadax.sources.base import BaseSource, Child
from loadax.testing.laws import Law
from loadax.testing.subject import Subject

EXAMPLES = Law("rows one by one", "entry i of examples(rows) must equal row rows[i] of read, in its own memory")
WRAPPER = Law(
    "a wrapper answers for what it wraps",
    "a source that wraps others must make the same claims about its rows as those, unless it changes that aspect",
)
_IMPLIED = "concurrent_reads", "num_maps", "random", "runs_python"  # traits of a child that its wrapper has at least


def check_examples(subject: Subject) -> None:
    """Checks that rows read one by one equal those read together, and may be written to."""
    for rows in (subject.sample, subject.sample[::-1].copy(), subject.draw(len(subject.sample) + 2)):
        subject.check_examples(subject.source, rows, EXAMPLES, "in read_examples")


def check_wrapper(subject: Subject) -> None:
    """Checks that a wrapper makes the same claims about its rows as the sources that it wraps."""
    for child in subject.source.children:
        _check_traits(subject, child)
        if child.first_row is not None:
            _check_rows(subject, child.source, child.first_row)
    if subject.source.children:
        again = subject.source.map_children(lambda child: child.source)
        if len(again) != subject.length:
            raise WRAPPER.broken(subject.name, f"rebuilt on the same sources it has {len(again)} rows")
        subject.check_examples(again, subject.sample, WRAPPER, "rebuilt on the same sources,")


def _check_traits(subject: Subject, child: Child) -> None:
    source, inner = subject.source, child.source
    own, its = source.traits._asdict(), inner.traits._asdict()
    implied = list(_IMPLIED)
    one = child.first_row == 0 and len(inner) == len(source) and len(source.children) == 1
    if one and own["num_maps"] == its["num_maps"]:  # else its rows are mapped
        implied.append("reads_examples")
        chunks = [None if each is None else np.asarray(each).tolist() for each in (source.chunks, inner.chunks)]
        _compare(subject, inner, {"chunks": chunks[0]}, {"chunks": chunks[1]})
    own["describe()"], its["describe()"] = (bool(each.describe()) for each in (source, inner))
    for name in (*implied, "describe()"):
        _compare(subject, inner, {name: own[name]}, {name: max(own[name], its[name])})


def _check_rows(subject: Subject, inner: BaseSource, first: int) -> None:
    """Checks a child whose rows are rows of the source."""
    if not 0 <= first <= first + len(inner) <= subject.length:
        raise WRAPPER.broken(subject.name, f"{inner.type_name} has {len(inner)} rows from row {first} on")
    inside = (subject.sample >= first) & (subject.sample < first + len(inner))
    for row in subject.sample[inside].tolist():
        _compare(subject, inner, _facts(subject.source, row), _facts(inner, row - first))


def _facts(source: BaseSource, row: int) -> dict[str, Any]:
    lengths = source.lengths(np.array([row]))
    return {
        f"locate({row})": source.locate(row),
        f"documents({row})": source.documents(row),
        f"lengths([{row}])": None if lengths is None else lengths.tolist(),
    }


def _compare(subject: Subject, inner: BaseSource, own: dict[str, Any], its: dict[str, Any]) -> None:
    for (name, value), (its_name, expected) in zip(own.items(), its.items(), strict=True):
        unknown = value is None and name.startswith("lengths")
        if value != expected and not unknown:
            raise WRAPPER.broken(subject.name, f"{name} is {value!r}, {inner.type_name}.{its_name} is {expected!r}")
