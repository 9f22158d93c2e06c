"""Pad: a transform that pads ragged leaves to a fixed length, and the checks of its arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import flag, integer
from loadax.core.casting import fill_value, fill_values
from loadax.core.formatting import count_text
from loadax.core.leaf_names import Path, path_of, unknown_leaf, value_at, with_value
from loadax.core.spec import (
    array_or_object,
    entries_like,
    spec_of,
    spec_or_object,
    stack,
)
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, LeafError
from loadax.protocols import ArraySpec, Tree, Visits
from loadax.transforms import Padding


@final
@dataclass(frozen=True)
class Pad:
    """Pads leaves of ragged rows at one side of their first dimension. Other leaves stay as they are.

    Examples are dicts, and each padded leaf "x" gets a leaf "x_length" (int32) beside it. Or they are bare arrays,
    which become dicts of "data" and "length", or stay bare without lengths.

    While it works, a leaf of a subtree has its whole name as a key of the example, and None is in its place.

    Args:
        function: Its arguments, a `Padding`, where other transforms have their function.
        left: Whether it pads and truncates at the start.
        add_lengths: Whether it adds the lengths.
        equal: Whether it is of `Buckets`, where the leaves of a row must be equally long, and the length of the first
            alone is added.
    """

    function: Any
    # Not in `Padding`, whose class is in the fingerprints of old indices; `describe` tells of them.
    left: bool = False
    add_lengths: bool = True
    equal: bool = False
    kind: ClassVar[Literal["pad"]] = "pad"
    spec = None
    stream = None
    rng = elementwise = with_index = with_epoch = False

    @property
    def _leaves(self) -> list[tuple[str, str | None, int]]:
        """Name, name of the added length, if there is one, and padded length of every leaf."""
        lengths = self.function.lengths
        if isinstance(lengths, int):
            return [("data", "length" if self.add_lengths else None, lengths)]
        if self.equal:
            told = [*lengths][:1]
        else:
            told = [*lengths]
        if not self.add_lengths:
            told = []
        return [
            (name, f"{name}_length" if name in told else None, most)
            for name, most in lengths.items()
        ]

    @property
    def _made(self) -> list[str]:
        """Names of the padded leaves and of the lengths."""
        return [
            made
            for name, length_name, _ in self._leaves
            for made in (name, length_name)
            if made is not None
        ]

    def spec_of(self, example: Tree, row: int, stacked: bool) -> Tree:
        """The spec of an example after padding.

        Args:
            example: The example.
            row: Its row.
            stacked: Whether its rows are stacked next; else other leaves may be any objects.

        Raises:
            LeafError: When a leaf is missing, exists already, or can't be padded; names the row.
            ArgumentError: When the value does not fit its dtype.
        """
        named, places = self._named(example, row)
        padded = {}
        for name, length_name, most in self._leaves:
            array = _paddable(named.pop(name), f"row {row}: leaf {name!r}")
            padded[name] = ArraySpec(
                (most, *array.shape[1:]), array.dtype.newbyteorder("=")
            )
            if length_name is not None:
                padded[length_name] = ArraySpec((), np.dtype(np.int32))
            fill_value(name, self.function.value, array.dtype)
        if stacked:
            others = spec_of(named)
        else:
            others = {name: spec_or_object(leaf) for name, leaf in named.items()}
        return self._finished({**others, **padded}, places)

    def pads_empty_list(self, example: Tree) -> bool:
        """Whether a leaf to pad is an empty list, which has no dtype, as arrays have."""
        if isinstance(example, Mapping):
            named = example
        else:
            named = {"data": example}
        return any(
            isinstance(leaf, list) and not leaf
            for leaf in (named.get(name) for name, *_ in self._leaves)
        )

    def results(
        self,
        examples: list[Tree],
        visits: Visits,
        spec: Tree,
        names: Sequence[Any],  # noqa: ARG002
    ) -> list[Tree]:
        """Pads examples, whose other leaves may differ from row to row.

        Raises:
            LeafError: When a padded leaf is missing, has another dtype or trailing dimensions than in `spec`, or is
                longer; names the row.
        """
        rows = visits.rows.tolist()
        pairs = [
            self._named(example, row)
            for example, row in zip(examples, rows, strict=True)
        ]
        padded = self._padded(
            [named for named, _ in pairs], rows, self._taken_apart(spec)[0]
        ).items()
        finished = []
        for index, (named, places) in enumerate(pairs):
            finished.append(
                self._finished(
                    named | {name: column[index] for name, column in padded}, places
                )
            )
        return finished

    def spec_of_tree(self, spec: Tree) -> Tree | None:  # noqa: ARG002
        """The spec depends on the examples."""
        return None

    def __call__(
        self,
        examples: list[Tree],
        visits: Visits,
        spec: Tree,
        names: Sequence[Any],  # noqa: ARG002
    ) -> Tree:
        """Pads and stacks examples; each leaf of the result has the shape of `spec` after the dimension of rows.

        Raises:
            LeafError: When an example has other leaves, dtypes or trailing dimensions, or is longer; names the row.
        """
        rows = visits.rows.tolist()
        by_name = isinstance(self.function.lengths, dict)
        spec, places = self._taken_apart(spec)
        named = [
            example
            if by_name and not places and type(example) is dict
            else self._named(example, row)[0]
            for example, row in zip(examples, rows, strict=True)
        ]
        if by_name:
            others = {
                name: leaf for name, leaf in spec.items() if name not in self._made
            }
        else:
            others = {}
        expected = {*others, *(name for name, _, _ in self._leaves)}
        for row, example in zip(rows, named, strict=True):
            if example.keys() != expected:
                raise LeafError(
                    f"row {row} has the leaves {sorted(example)}, and the first row "
                    f"had {sorted(expected)}; return the same leaves for every row"
                )
        if others:
            rest = self._stacked(named, others, rows)
        else:
            rest = {}
        return self._finished({**rest, **self._padded(named, rows, spec)}, places)

    def _stacked(
        self, named: list[dict[str, Any]], others: dict[str, Any], rows: list[int]
    ) -> Tree:
        """The leaves that are not padded, rows first."""
        rest = [{name: example[name] for name in others} for example in named]
        try:
            return stack(rest, others, rows)
        except LeafError as error:
            leading = next(iter(self.function.lengths))
            if self.equal:
                ragged = _as_long(
                    rest, others, [example[leading] for example in named]
                )
            else:
                ragged = []
            if not ragged:
                raise
            raise LeafError(
                f"{str(error).partition(';')[0]}; a leaf as long as {leading!r} is "
                "padded with it if it is named: "
                f"Buckets({(*self.function.lengths, *ragged)}, …)"
            ) from error

    def _taken_apart(self, spec: Tree) -> tuple[Tree, dict[str, Path]]:
        """A spec of padded rows as `_named` gives an example, and the places of what is made in a subtree."""
        places: dict[str, Path] = {}
        if not isinstance(self.function.lengths, dict) or not isinstance(spec, dict):
            return spec, places
        for name, length_name, _ in self._leaves:
            path = path_of(spec, name)
            if path is not None and len(path) > 1:
                places[name] = path
                if length_name is not None:
                    places[length_name] = _beside(path)
        for name, path in places.items():
            spec = {**with_value(spec, path, None), name: value_at(spec, path)}
        return spec, places

    def _finished(self, named: dict[str, Any], places: dict[str, Path]) -> Tree:
        """An example, a batch or a spec with everything in its place."""
        if isinstance(self.function.lengths, int) and not self.add_lengths:
            return named["data"]
        for name, path in places.items():
            value = named.pop(name)
            named = with_value(named, path, value)
        return named

    def _padded(
        self, named: list[dict[str, Any]], rows: list[int], spec: Tree
    ) -> dict[str, NDArray[Any]]:
        """The padded leaves of all examples and their lengths, rows first."""
        batch: dict[str, NDArray[Any]] = {}
        first: NDArray[np.int64] | None = None
        for name, length_name, most in self._leaves:
            if type(spec) is dict:
                column_spec = spec[name]
            else:
                column_spec = spec
            column = _entries(
                [example[name] for example in named], rows, name, column_spec
            )
            lengths = np.fromiter(map(len, column), np.int64, len(column))
            if first is None:
                first = lengths
            if self.equal:
                self._check_equal(first, lengths, rows, name)
            batch[name] = self._pad(column, lengths, rows, name, column_spec)
            if length_name is not None:
                batch[length_name] = np.minimum(lengths, most).astype(np.int32)
        return batch

    def _check_equal(
        self,
        first: NDArray[np.int64],
        lengths: NDArray[np.int64],
        rows: list[int],
        name: str,
    ) -> None:
        """Checks that a leaf is as long as the first one in every row.

        Raises:
            LeafError: When it is not; names the row.
        """
        for index in np.flatnonzero(lengths != first)[:1].tolist():
            leading, most = next(iter(self.function.lengths.items()))
            others = tuple(other for other in self.function.lengths if other != name)
            raise LeafError(
                f"row {rows[index]}: leaf {name!r} has "
                f"{count_text(lengths[index], 'entry', 'entries')}, but {leading!r} "
                f"has {first[index]}, and Buckets pads them together; make them "
                "equally long in a map, or pad the leaf before, to one length: "
                f".pad({{{name!r}: {max(most, lengths.max())}}}) and "
                f"Buckets({others}, …)"
            )

    def _named(
        self, example: Tree, row: int
    ) -> tuple[dict[str, Any], dict[str, Path]]:
        """An example as a dict that may be changed, with the leaves to pad, and the places of those of subtrees."""
        named = self._as_dict(example, row)
        places = dict[str, Path]()
        for name, length_name, _ in self._leaves:
            path = (name,) if name in named else path_of(named, name)
            if path is None:
                known = flatten(named, is_leaf=lambda node: type(node) is list)[
                    1
                ].names
                raise LeafError(f"pad(), row {row}: {unknown_leaf(name, known)}")
            beside = _beside(path)
            if (
                length_name is not None
                and path_of(value_at(named, path[:-1]), beside[-1]) is not None
            ):
                raise LeafError(
                    f"row {row} has a leaf {length_name!r} already, where pad() adds "
                    f"the length of {name!r}; rename it, or pass add_lengths=False "
                    "to add none"
                )
            if len(path) > 1:
                places[name] = path
                named = {**with_value(named, path, None), name: value_at(named, path)}
                if length_name is not None:
                    self._check_dict(named, path, name, row)
                    named = with_value(named, beside, None)
                    places[length_name] = beside
        return named, places

    def _check_dict(
        self, named: dict[str, Any], path: Path, name: str, row: int
    ) -> None:
        """Checks that a length can be added beside a leaf.

        Raises:
            LeafError: When it can't.
        """
        around = value_at(named, path[:-1])
        if not isinstance(around, dict):
            what = (
                f"row {row}: the length of {name!r} can't be added to a "
                f"{type(around).__name__}"
            )
            raise LeafError(
                f"{what}; make it a dict in a map, or pass add_lengths=False to add "
                "none"
            )

    def _as_dict(self, example: Tree, row: int) -> dict[str, Any]:
        if isinstance(self.function.lengths, int):
            if isinstance(example, Mapping):
                raise LeafError(
                    f"row {row} is a dict of {list(example)}; pass the lengths of "
                    f"its leaves by name: pad({{{next(iter(example), 'tokens')!r}: "
                    f"{self.function.lengths}}})"
                )
            return {"data": example}
        if not isinstance(example, Mapping):
            bare = type(example) is list or (
                not isinstance(example, tuple | str | bytes) and np.ndim(example)
            )
            if bare:
                remedy = "pass one int for bare arrays"
            else:
                remedy = "return a dict in a map before pad()"
            raise LeafError(
                f"row {row} is a {type(example).__name__}; pad() by name needs "
                f"dicts: {remedy}"
            )
        return dict(example)

    def _pad(
        self,
        column: list[Any],
        lengths: NDArray[np.int64],
        rows: list[int],
        name: str,
        spec: ArraySpec,
    ) -> NDArray[Any]:
        """One leaf of all examples, padded."""
        most = spec.shape[0]
        if not self.function.truncate and lengths.max(initial=0) > most:
            worst = int(np.argmax(lengths))
            raise LeafError(
                f"row {rows[worst]}: leaf {name!r} has "
                f"{count_text(lengths[worst], 'entry', 'entries')}, more than "
                f"{most}, its padded length; pass a larger length, or truncate=True "
                "to drop the excess entries"
            )
        padded = np.full(
            (len(column), *spec.shape),
            fill_value(name, self.function.value, spec.dtype),
            spec.dtype,
        )
        for row, leaf in zip(padded, column, strict=True):
            if self.left:
                row[max(0, most - len(leaf)) :] = leaf[max(0, len(leaf) - most) :]
            else:
                row[: len(leaf)] = leaf[:most]
        return padded

    def describe(self) -> list[Any]:
        options = ["side='left'"] * self.left + ["add_lengths=False"] * (
            not self.add_lengths
        )
        # states of one leaf stay as they are
        if self.equal and len(self.function.lengths) > 1:
            options.append("equal=True")
        return [
            "pad",
            self.function.lengths,
            self.function.value,
            self.function.truncate,
            *options,
        ]

    def text(self) -> str:
        return ", ".join([repr(self.function)[:-1], *self.describe()[4:]]) + ")"


def _as_long(
    examples: list[dict[str, Any]], spec: dict[str, Any], leading: list[Any]
) -> list[str]:
    """Names of the leaves that are ragged, and as long as the leading one in all of these examples."""
    specs, structure = flatten(spec, is_leaf=lambda node: isinstance(node, ArraySpec))
    found = []
    for name, leaf_spec in zip(structure.names, specs, strict=True):
        places = [path_of(example, name) for example in examples]
        leaves = [
            np.shape(value_at(example, path or ()))
            for example, path in zip(examples, places, strict=True)
        ]
        as_long = all(
            shape[:1] == (len(leaf),)
            for shape, leaf in zip(leaves, leading, strict=True)
        )
        if as_long and any(shape != leaf_spec.shape for shape in leaves):
            found.append(name)
    return found


def _entries(
    column: list[Any], rows: list[int], name: str, spec: ArraySpec
) -> list[Any]:
    """One leaf of all examples, as arrays of its dtype.

    Raises:
        LeafError: When an example has another dtype or trailing dimensions; names the row.
    """
    trailing = spec.shape[1:]
    for index, leaf in enumerate(column):
        if (
            type(leaf) is not np.ndarray
            or leaf.dtype != spec.dtype
            or leaf.shape[1:] != trailing
            or not leaf.ndim
        ):
            label = f"row {rows[index]}: leaf {name!r}"
            column[index] = entries_like(
                _paddable(leaf, label), spec.dtype, trailing, label
            )
    return column


def _beside(path: Path) -> Path:
    """Path of the length of the leaf at a path."""
    return (*path[:-1], f"{path[-1]}_length")


def padding(lengths: Any, value: Any, truncate: Any) -> Padding:
    """The arguments of `Dataset.pad`.

    Raises:
        ArgumentError: When a value can't be used.
    """
    remedy = (
        "a length for each leaf by name, such as {'tokens': 512}, or one int for "
        "bare arrays"
    )
    checked: dict[str, int] | int
    if isinstance(lengths, Mapping):
        if not lengths or not all(isinstance(name, str) for name in lengths):
            raise ArgumentError(f"lengths={lengths!r}: pass {remedy}")
        checked = {
            name: integer(f"lengths[{name!r}]", length, 1)
            for name, length in lengths.items()
        }
    else:
        checked = integer("lengths", lengths, 1, remedy=remedy)
    value = fill_values(value)
    for name in value if isinstance(value, dict) else ():
        if name not in (checked if isinstance(checked, dict) else ("data",)):
            raise ArgumentError(
                f"value has the key {name!r}, which is not padded; leave it out",
                argument="value",
            )
    return Padding(checked, value, flag("truncate", truncate))


def _paddable(leaf: Any, label: str) -> NDArray[Any]:
    array = array_or_object(leaf, label)
    if not array.ndim or array.dtype.kind in "OSUMm":
        remedy = "leave it out of pad()"
        # a row of several leaves, as datasets of torch return them
        if isinstance(leaf, tuple):
            remedy = (
                "return a dict in a map, and pad its leaves by name: pad({'tokens': "
                "512})"
            )
        raise LeafError(
            f"{label} is {array.dtype}{list(array.shape)}, but pad() pads the first "
            f"dimension of numeric arrays; {remedy}"
        )
    return array
