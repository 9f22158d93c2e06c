"""ParquetSource: rows of Parquet files, whose row groups are decoded whole and cached in memory."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from loadax.core.distinct import distinct
from loadax.core.spec import spec_of, stack
from loadax.core.tree import flatten
from loadax.files.byte_ranges import KnownFiles, waves
from loadax.files.remote_ranges import Wanted
from loadax.protocols import (
    Array,
    Boxes,
    Integers,
    LeafArrays,
    Location,
    Outputs,
    Tree,
    Visits,
)
from loadax.sources.base import BaseSource
from loadax.sources.checks import check_rows, chunk_starts
from loadax.sources.tables.arrow.column_tree import ColumnTree
from loadax.sources.tables.parquet.row_groups import RowGroups
from loadax.sources.wrappers.chunk_cache import ChunkCache, largest_chunk

if TYPE_CHECKING:
    from loadax.sources.decoded_parts import DecodedParts


@final
class ParquetSource(BaseSource):
    """Rows of Parquet files: dicts of columns.

    Args:
        groups: Decoder of the row groups.
        memory_bytes: Memory for decoded row groups.
        open_groups: Number of row groups to keep even if they take more.
    """

    def __init__(self, groups: RowGroups, memory_bytes: int, open_groups: int = 0):
        self._groups = groups
        self._memory_bytes = memory_bytes
        self._open_groups = open_groups
        self._empty = groups.leaves.empty
        self.structure = self._empty.structure
        self.traits = self._empty.traits._replace(
            concurrent_reads=4 if groups.files.far else 1,
            cached_chunks=self._fitting(),
            attributes=groups.leaves.attributes,
        )
        self._cache: ChunkCache | None = None
        self._recent: DecodedParts[ColumnTree] | None = None
        if self._empty.is_numeric and chunk_starts(groups) is not None:
            self._cache = ChunkCache(
                groups, groups.spec, self.traits.cached_chunks, math.inf
            )
        else:
            from loadax.sources import decoded_parts

            self._recent = decoded_parts.DecodedParts(
                groups.decode_one, groups.size, memory_bytes, open_groups
            )

    def __len__(self) -> int:
        return len(self._groups)

    def __repr__(self) -> str:
        files = self._groups.files.locations
        if len(files) == 1:
            where = files[0]
        else:
            where = f"{files[0]} and {len(files) - 1} more"
        return f"Parquet columns ({self._groups.leaves}) of {where}"

    def held(self, most: int) -> list[Array]:  # noqa: ARG002
        return self._groups.leaves.stated_names

    @property
    def spec(self) -> Tree | None:
        return self._empty.spec

    @property
    def chunks(self) -> Integers | range | None:
        if len(self._groups.starts) > 1:
            return self._groups.chunks
        return None

    @property
    def groups(self) -> Integers:
        """First rows of the files that have some."""
        files = self._groups.files.groups["file"]
        return self._groups.starts[np.diff(files, prepend=-1) > 0]

    def _fitting(self) -> int:
        """Number of row groups that fit into memory."""
        number = len(self._groups.starts)
        if self._empty.is_numeric and number:
            height = largest_chunk(self._groups.starts, len(self))
            row = sum(spec.nbytes for spec in self._empty.specs if spec is not None)
            fitting = self._memory_bytes // max(1, height * row)
        else:
            sizes = [self._groups.size(index) for index in range(number)]
            fitting = self._memory_bytes // max(1, *sizes, 1)
        return min(number, max(1, fitting, self._open_groups))

    def cache_chunks(self, count: int) -> BaseSource:
        if count <= self.traits.cached_chunks:
            return self
        return ParquetSource(self._groups, self._memory_bytes, count)

    def keep_leaves(self, leaves: Tree) -> BaseSource:
        return ParquetSource(
            RowGroups(self._groups.files, self._groups.leaves.keep(leaves)),
            self._memory_bytes,
        )

    def wanted(self, visits: Visits) -> list[Wanted]:
        if not self._groups.files.far:
            return []
        rows = check_rows(visits.rows, len(self))
        groups = distinct(
            np.searchsorted(self._groups.starts, rows, side="right") - 1
        )[0]
        kept = self._cache or self._recent
        assert kept is not None
        wanted = self._groups.wanted_of(kept.lacks(groups))
        columns = max(1, len(self._groups.leaves.leaves))
        return [wanted._replace(kept=columns * self.traits.cached_chunks)]

    @property
    def known_files(self) -> KnownFiles:
        return self._groups.files.known_files

    @property
    def addresses(self) -> list[str]:
        return self._groups.files.locations

    def locate(self, row: int) -> list[Location]:
        """File of a row, with the bytes of its row group."""
        group, row_of_file = self._groups.group_of(
            int(check_rows([row], len(self))[0])
        )
        location = self._groups.files.locate(group)
        return [
            location._replace(part=f"{location.part}, row {row_of_file} of the file")
        ]

    def read(self, rows: Integers) -> Tree:
        rows = check_rows(rows, len(self))
        if self._cache is not None:
            return self._cache.read(rows)
        if not len(rows):
            # Where rows may differ in shape, one of them tells the shape of none.
            one = len(self) > 0 and self._empty.is_ragged
            if one:
                tree = next(self._waves(np.zeros(1, np.int64)))[0]
            else:
                tree = self._empty
            return tree.read(rows)
        parts = list(self._waves(rows))
        if len(parts) == 1:
            tree, inside, _ = parts[0]
            return tree.read(inside, rows)
        examples = self._examples(rows)
        return stack(
            examples,
            self.spec if self.spec is not None else spec_of(examples[0]),
            rows.tolist(),
        )

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        if self._cache is not None:
            self._cache.read_into(rows, boxes, out)
        elif self.traits.reads_columns:
            self._groups.read_into(rows, boxes, out)
        else:
            super().read_into(rows, boxes, out)

    def read_examples(self, visits: Visits) -> list[Tree]:
        if self._cache is not None:
            return super().read_examples(visits)
        return self._examples(check_rows(visits.rows, len(self)))

    def read_parts(
        self,
        rows: Integers,
        starts: Integers,
        lengths: Integers,
        wanted: Sequence[bool],
    ) -> LeafArrays:
        rows = check_rows(rows, len(self))
        if not len(rows):
            return self._empty.parts(rows, starts, lengths, wanted)
        needed = np.unique(
            np.searchsorted(self._groups.starts, rows, side="right") - 1
        ).tolist()
        if (
            len(needed) == 1
            or sum(map(self._groups.size, needed)) <= self._memory_bytes
        ):
            tree, inside, _ = next(self._waves(rows))
            return tree.parts(inside, starts, lengths, wanted)
        cuts = list(map(slice, starts.tolist(), (starts + lengths).tolist()))
        parts = [
            [leaf[cut] for leaf in flatten(row)[0]]
            for row, cut in zip(self._examples(rows), cuts, strict=True)
        ]
        columns = zip(wanted, zip(*parts, strict=True), strict=True)
        return [np.concatenate(column) if want else None for want, column in columns]

    def __reduce__(self) -> Any:
        # The cache of another process is its own.
        selected = {"described": self.described, "traits": self.traits}
        return (
            ParquetSource,
            (self._groups, self._memory_bytes, self._open_groups),
            selected,
        )

    def _examples(self, rows: Integers) -> list[Tree]:
        found: list[Tree] = [None] * len(rows)
        for tree, inside, places in self._waves(rows):
            for place, example in zip(
                places.tolist(), tree.examples(inside), strict=True
            ):
                found[place] = example
        return found

    def _waves(
        self, rows: Integers
    ) -> Iterator[tuple[ColumnTree, Integers, Integers]]:
        """Yields row groups of limited memory, joined, the rows to read of these, and their places in `rows`."""
        assert self._recent is not None
        starts = self._groups.starts
        which = np.searchsorted(starts, rows, side="right") - 1
        needed, group = np.unique(which, return_inverse=True)
        for wave in waves(
            [self._groups.size(index) for index in needed.tolist()],
            self._memory_bytes,
        ):
            trees = [self._recent.get(index) for index in needed[wave].tolist()]
            joined: ColumnTree = trees[0].join(trees[1:])
            firsts = np.cumsum([0, *map(len, trees)])[:-1]
            places = np.flatnonzero((group >= wave.start) & (group < wave.stop))
            yield (
                joined,
                rows[places]
                - starts[which[places]]
                + firsts[group[places] - wave.start],
                places,
            )
