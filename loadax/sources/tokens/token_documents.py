"""DocumentSource: documents of different lengths, concatenated in flat arrays."""

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np

from loadax.core.formatting import count_text, type_text
from loadax.core.tree import flatten, map_leaves
from loadax.errors import ArgumentError, SourceError
from loadax.files.files import Files, files_with_cache
from loadax.protocols import Array, Integers, LeafArrays, Location, Tree, Visits
from loadax.sources.arrays import joined_files, rows_in_memory, some_rows
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, common_length
from loadax.sources.memory_array import ArrayLeaf, MemoryArray

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles


@final
class DocumentSource(BaseSource):
    """Row i: the entries `[begins[i], ends[i])` of every flat array.

    Args:
        tree: Pytree of flat arrays (`ArrayLeaf`), all equally long.
        begins: First entry of each document, int64[n].
        ends: End of each document, int64[n].
    """

    def __init__(self, tree: Tree, begins: Integers, ends: Integers):
        flats, self.structure = flatten(tree)
        self._flats: Sequence[ArrayLeaf] = flats
        self._begins = begins
        self._ends = ends
        if any(flat.far for flat in self._flats):
            reads = 4
        else:
            reads = 1
        self.traits = Traits(
            reads_examples=True,
            reads_parts=True,
            owns_memory=True,
            concurrent_reads=reads,
        )

    def __len__(self) -> int:
        return len(self._begins)

    def keep_leaves(self, leaves: Tree) -> "DocumentSource":
        return DocumentSource(
            map_leaves(self._flats.__getitem__, leaves), self._begins, self._ends
        )

    def __repr__(self) -> str:
        return f"documents in {count_text(len(self._flats[0]), 'entry', 'entries')}"

    def read(self, rows: Integers) -> Tree:
        """Reads and stacks the documents at `rows`.

        Raises:
            SourceError: When their lengths differ, so that they can't be stacked.
        """
        lengths = self.lengths(rows)
        if len(np.unique(lengths)) > 1:
            raise SourceError(
                f"the {len(rows)} requested documents have different lengths and "
                "can't be stacked; pack them into rows of one length with "
                ".pack(seq_len), pad them with .pad(lengths), or look at one as "
                "dataset[i]"
            )
        shape = (
            len(lengths),
            (lengths if len(lengths) else self.lengths(np.zeros(1, np.int64)))[0],
        )
        parts = self.read_parts(
            rows, np.zeros_like(lengths), lengths, [True] * len(self._flats)
        )
        return self.structure.build(
            part.reshape(*shape, *part.shape[1:])
            for part in parts
            if part is not None
        )

    def lengths(self, rows: Integers) -> Integers:
        rows = check_rows(rows, len(self))
        return self._ends[rows] - self._begins[rows]

    def read_examples(self, visits: Visits) -> list[Tree]:
        rows = check_rows(visits.rows, len(self))
        lengths = self.lengths(rows)
        parts = self.read_parts(
            rows, np.zeros_like(rows), lengths, [True] * len(self._flats)
        )
        cuts = [0, *np.cumsum(lengths).tolist()]
        split = [
            [part[start:stop] for start, stop in pairwise(cuts)]
            for part in parts
            if part is not None
        ]
        if len(rows):
            return [
                self.structure.build(leaves) for leaves in zip(*split, strict=True)
            ]
        return []

    def read_parts(
        self,
        rows: Integers,
        starts: Integers,
        lengths: Integers,
        wanted: Sequence[bool],
    ) -> LeafArrays:
        begins = self._begins[check_rows(rows, len(self))] + starts
        nonempty = lengths > 0
        if not nonempty.all():
            begins = begins[nonempty]
            lengths = lengths[nonempty]
        flats = list(zip(self._flats, wanted, strict=True))
        if not len(begins):
            return [
                np.empty((0, *flat.spec.shape), flat.spec.dtype) if want else None
                for flat, want in flats
            ]
        return [
            flat.gather(begins, lengths) if want else None for flat, want in flats
        ]

    @property
    def known_files(self) -> "KnownFiles":
        return joined_files(self._flats)

    @property
    def addresses(self) -> list[str]:
        return [address for flat in self._flats for address in flat.addresses]

    def held(self, most: int) -> list[Array]:
        """Flat arrays in memory and document offsets, or evenly spaced entries: at most `most` bytes of each."""
        return [
            *rows_in_memory(self._flats, most),
            some_rows(self._begins, self._begins.nbytes, most),
        ]

    def locate(self, row: int) -> list[Location]:
        """Files of a document, each with its first and last byte."""
        index = int(check_rows([row], len(self))[0])
        begin = int(self._begins[index])
        end = int(self._ends[index])
        return [
            location for flat in self._flats for location in flat.locate(begin, end)
        ]


def open_documents(
    data: Any, offsets: Any, dtype: Any, cache: Any, cache_bytes: int
) -> DocumentSource:
    """Opens documents; see `loadax.from_documents`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        SourceError: When a file is missing, cut short or mislabelled, or the offsets don't fit; names it.
    """
    files = files_with_cache(cache, cache_bytes)
    if offsets is None:
        if not _is_files(data):
            raise ArgumentError(
                f"offsets=None, but {type(data).__name__} data has no document "
                "boundaries; pass offsets=, or the path of a Megatron .bin and .idx "
                "pair; for a list of arrays, one per document, use "
                "loadax.from_source(list)"
            )
        from loadax.sources.tokens.megatron import read_documents
        from loadax.sources.tokens.token_files import (
            find_token_files,
            open_token_stream,
        )

        found = find_token_files(data, dtype, True, files)
        begins, ends = read_documents(
            found.files, [str(entry.index_file) for entry in found.entries]
        )
        return DocumentSource(open_token_stream(found), begins, ends)
    # several files are one stream, not a tree of arrays
    leaves, structure = flatten(data, is_leaf=_is_files)
    flats = [_open_flat(leaf, dtype, files) for leaf in leaves]
    bounds = _bounds(offsets, common_length(structure.paths, list(map(len, flats))))
    return DocumentSource(structure.build(flats), bounds[:-1], bounds[1:])


def _is_files(data: Any) -> bool:
    """Whether data is a path, or a list of them."""
    return all(
        isinstance(item, str | os.PathLike)
        for item in (data if isinstance(data, list | tuple) else [data])
    )


def _open_flat(data: Any, dtype: Any, files: Files) -> ArrayLeaf:
    if _is_files(data):
        from loadax.sources.tokens.token_files import (
            find_token_files,
            open_token_stream,
        )

        return open_token_stream(find_token_files(data, dtype, False, files))
    if not hasattr(data, "__array__"):
        raise ArgumentError(
            f"data is {type_text(data)}; pass a flat array, its path, or a dict of "
            "these"
        )
    array = np.asanyarray(data)
    if array.ndim != 1:
        raise ArgumentError(
            f"data is {array.dtype}{list(array.shape)}; pass a flat array, such as "
            "array.reshape(-1)"
        )
    return MemoryArray(array)


def _bounds(offsets: Any, total: int) -> Integers:
    if isinstance(offsets, str | os.PathLike):
        from loadax.sources.npy.source import open_npy

        source = open_npy(offsets)
        offsets = source.read(np.arange(len(source)))
    given = np.asarray(offsets)
    if given.ndim != 1 or given.dtype.kind not in "iu" or len(given) < 2:
        what = f"offsets are {given.dtype}{list(given.shape)}"
        raise ArgumentError(
            f"{what}; pass ints: the first entry of each document, and then the end "
            "of the last one"
        )
    bounds = given.astype(np.int64)
    # not by differences, which may wrap
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if bounds[0] != 0 or bounds[-1] != total or len(falls):
        if len(falls):
            down = f" with {bounds[falls[0] + 1]} after {bounds[falls[0]]}"
        else:
            down = ""
        what = (
            f"the offsets go from {bounds[0]} to {bounds[-1]}{down}, but the data "
            f"has {count_text(total, 'entry', 'entries')}"
        )
        raise SourceError(
            f"{what}; pass offsets that ascend from 0 to {total}, one more than "
            "documents"
        )
    return bounds
