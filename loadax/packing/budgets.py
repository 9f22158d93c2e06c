"""Budgets: which leaves of documents share an axis of the packed rows."""

from collections.abc import Sequence
from typing import Any, final

from numpy.typing import NDArray

from loadax.errors import ArgumentError, LeafError
from loadax.plan.pack import ALL, DOCUMENTS, PackOptions


@final
class Budgets:
    """Finds the budget of every leaf from the first documents.

    A leaf that `seq_len` names has that budget. Another leaf has the budget whose leaf is as long as it in every
    document. If there is none, and its shape is that of the first document, it has one value a document.

    Args:
        options: Options as they were given.
        names: Names of the leaves, in their order.

    Raises:
        ArgumentError: When an option names a leaf that documents don't have.
    """

    def __init__(self, options: PackOptions, names: Sequence[str]):
        self._options = options
        self._names = names
        told = {
            **{name: name for name in options.seq_lens if name != ALL},
            **options.leaves,
        }
        if wrong := [name for name in (*told, *options.offsets) if name not in names]:
            argument, value = (
                ("seq_len", options.seq_len)
                if wrong[0] in told
                else ("offsets", options.offsets)
            )
            what = (
                f"{argument}={value} names {wrong[0]!r}, which is not a leaf of the "
                f"documents: {[*names]}"
            )
            raise ArgumentError(
                f"{what}; leave it out, or name one of these", argument=argument
            )
        every = [*options.seq_lens, DOCUMENTS]
        self._fits = {name: [told[name]] if name in told else every for name in names}
        self._first: dict[str, tuple[int, ...]] = {}

    @property
    def settled(self) -> bool:
        """Whether more documents can't tell more."""
        return all(len(fits) == 1 for fits in self._fits.values())

    def see(self, arrays: Sequence[NDArray[Any]], row: int) -> None:
        """Compares the leaves of one more document.

        Raises:
            LeafError: When no budget fits a leaf, in all documents so far.
        """
        if not any(array.shape for array in arrays):
            raise LeafError(
                f"row {row} has only numbers; a document needs an array, such as "
                "tokens"
            )
        shapes = {
            name: array.shape for name, array in zip(self._names, arrays, strict=True)
        }
        self._first = self._first or shapes
        for name, fits in self._fits.items():
            if not shapes[name] and DOCUMENTS not in fits:
                what = (
                    f"row {row}: leaf {name!r} is one number, but "
                    f"seq_len={self._options.seq_len} names it"
                )
                raise LeafError(
                    f"{what}; leave it out there, and pass most_documents"
                )
            if len(fits) > 1:
                self._fits[name] = [
                    budget for budget in fits if self._is_one_of(name, budget, shapes)
                ]
            if not self._fits[name]:
                lengths = {
                    budget: shapes[budget][0] for budget in self._options.seq_lens
                }
                raise LeafError(
                    f"row {row}: leaf {name!r} has the shape {[*shapes[name]]}, and "
                    f"no budget fits it in this row and those before: {lengths}; "
                    "name it in seq_len, or drop it in a map"
                )

    def _is_one_of(
        self, name: str, budget: str, shapes: dict[str, tuple[int, ...]]
    ) -> bool:
        shape = shapes[name]
        if not self._options.by_leaf:
            return bool(shape) == (budget != DOCUMENTS)
        if budget == DOCUMENTS:
            return shape == self._first[name]
        return shape[:1] == shapes[budget][:1]

    def options(self) -> PackOptions:
        """The options with the budgets of all leaves; budgets are in the order of their leaves.

        Raises:
            ArgumentError: When several budgets fit a leaf, or `most_documents` is missing.
        """
        options = self._options
        found = {
            name: [each for each in fits if each != DOCUMENTS] or fits
            for name, fits in self._fits.items()
        }
        for name, fits in found.items():
            if len(fits) > 1:
                given = {
                    budget: length
                    for budget, length in options.seq_lens.items()
                    if budget != fits[0]
                }
                example: dict[Any, int] = {
                    (fits[0], name): options.seq_lens[fits[0]],
                    **given,
                }
                raise ArgumentError(
                    f"leaf {name!r} is as long as each of {fits} in the first "
                    "documents; name it beside the one that it belongs to, such as "
                    f"seq_len={example}",
                    argument="seq_len",
                )
            if fits[0] == DOCUMENTS and options.most_documents is None:
                raise ArgumentError(
                    f"leaf {name!r} has one value a document; pass the most "
                    "documents of a row, such as method='best_fit', "
                    "most_documents=64, name it in seq_len, or drop it in a map",
                    argument="most_documents",
                )
        ordered = {
            name: options.seq_lens[name]
            for name in self._names
            if name in options.seq_lens
        }
        leaves = {
            name: fits[0]
            for name, fits in found.items()
            if fits[0] not in (name, ALL)
        }
        return options._replace(seq_lens=ordered or options.seq_lens, leaves=leaves)
