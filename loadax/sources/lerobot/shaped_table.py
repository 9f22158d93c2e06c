"""ShapedTable: a table whose lists have the shapes that the dataset's features state, as pandas writes them."""

from typing import final

from loadax.core.spec import flatten_spec, split_rows
from loadax.core.tree import flatten
from loadax.errors import SourceError
from loadax.protocols import Boxes, Integers, Outputs, Tree, Visits
from loadax.sources.base import BaseSource, WrapperSource, asked_for
from loadax.sources.checks import read_columns


@final
class ShapedTable(WrapperSource):
    """The same rows, as arrays of these shapes.

    Args:
        source: Table with lists of any length.
        spec: Spec of a row, by the name of the column.
    """

    spec: Tree = None

    def __init__(self, source: BaseSource, spec: Tree):
        super().__init__(source)
        self.spec = spec
        self.traits = source.traits._replace(
            reads_examples=False, reads_columns=True, reads_parts=False
        )

    def __repr__(self) -> str:
        return repr(self._source)

    def _over(self, source: BaseSource) -> "ShapedTable":
        return ShapedTable(source, self.spec)

    def keep_leaves(self, leaves: Tree) -> BaseSource | None:
        kept = self._source.keep_leaves(leaves)
        if kept is None:
            return None
        indices, structure = flatten(leaves)
        specs = flatten_spec(self.spec)[0]
        return ShapedTable(kept, structure.build(specs[index] for index in indices))

    read = read_columns

    def read_visits(self, visits: Visits) -> Tree:
        return self.read(visits.rows)

    def read_examples(self, visits: Visits) -> list[Tree]:
        return split_rows(self.read(visits.rows), len(visits.rows))

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        specs, structure = flatten_spec(self.spec)
        stored = flatten(self._source.read(rows))[0]
        named = zip(structure.names, specs, stored, strict=True)
        for (name, spec, values), columns, into in asked_for(named, boxes, out):
            shape = values.shape[1:]
            if shape == (1,):  # which a feature states of a number
                shape = ()
            if shape != spec.shape:
                raise SourceError(
                    f"column {name!r} has values of shape {list(shape)}, and "
                    f"meta/info.json says {list(spec.shape)}; correct it there"
                )
            whole = values.reshape(len(rows), *spec.shape)
            into[...] = whole[(slice(None), *(slice(*column) for column in columns))]
