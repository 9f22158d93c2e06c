"""CroppedSource: the first columns of another source."""

from typing import Any, final

import numpy as np

from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.protocols import Array, ArraySpec, Integers, Tree, Visits
from loadax.sources.base import BaseSource, WrapperSource


@final
class CroppedSource(WrapperSource):
    """Crops every leaf of a source's rows to the first entries of each dimension.

    Args:
        source: Source of the rows.
        spec: Spec of a cropped row.
    """

    spec: Tree = None

    def __init__(self, source: BaseSource, spec: Tree):
        super().__init__(source)
        self.traits = source.traits._replace(reads_parts=False)
        self.spec = spec
        self._specs, self._structure = flatten_spec(spec)

    def __repr__(self) -> str:
        return f"the first columns of {self._source!r}"

    def _over(self, source: BaseSource) -> "CroppedSource":
        return CroppedSource(source, self.spec)

    def read(self, rows: Integers) -> Tree:
        return self._cropped(self._source.read(rows), first_columns)

    def read_visits(self, visits: Visits) -> Tree:
        return self._cropped(self._source.read_visits(visits), first_columns)

    # `read_into` is that of the source: boxes count from the first column, so they are the same in both.

    def read_examples(self, visits: Visits) -> list[Tree]:
        return [
            self._cropped(example, _first_entries)
            for example in self._source.read_examples(visits)
        ]

    def lengths(self, rows: Integers) -> None:  # noqa: ARG002 - cropped rows have one length
        return None

    def read_parts(self, *_: Any) -> list[Array | None]:
        raise SourceError(
            "cropped rows are not documents and have no parts; read them whole"
        )

    def _cropped(self, tree: Tree, crop: Any) -> Tree:
        return self._structure.build(
            crop(leaf, spec)
            for leaf, spec in zip(flatten(tree)[0], self._specs, strict=True)
        )


def first_columns(leaf: Any, spec: ArraySpec) -> Any:
    """Crops the columns of rows to a spec."""
    return np.asarray(leaf)[(slice(None), *(slice(extent) for extent in spec.shape))]


def _first_entries(leaf: Any, spec: ArraySpec) -> Any:
    return np.asarray(leaf)[tuple(slice(extent) for extent in spec.shape)]
