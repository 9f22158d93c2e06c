"""TokenSource: windows of a token stream in flat files, and the document number of each token."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from loadax.core.arguments import flag, integer
from loadax.core.array_parts import indices
from loadax.core.formatting import count_text
from loadax.errors import SourceError
from loadax.files.files import files_with_cache
from loadax.files.remote_ranges import Wanted
from loadax.protocols import (
    Array,
    ArraySpec,
    Boxes,
    Integers,
    Location,
    Outputs,
    Tree,
    Visits,
)
from loadax.redaction import redact
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, read_columns
from loadax.sources.stream_array import StreamArray
from loadax.sources.tokens.token_files import (
    TokenFiles,
    find_token_files,
    open_token_stream,
)

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles
    from loadax.files.metadata import Metadata


@final
class SegmentIds:
    """Document numbers of the tokens of a stream. Pickles as the paths of the `.idx` files, and reads them again.

    Args:
        token_files: Files of the stream, each with its `.idx` file.
    """

    def __init__(self, token_files: TokenFiles):
        self._files = token_files.files
        # Paths or URLs of the `.idx` files.
        self.indices = [str(entry.index_file) for entry in token_files.entries]

    def __getstate__(self) -> dict[str, Any]:
        return {"_files": self._files, "indices": self.indices}

    @cached_property
    def begins(self) -> Integers:
        """First tokens of the documents, int64[m], ascending, without empty documents."""
        from loadax.sources.tokens.megatron import read_documents

        return np.unique(read_documents(self._files, self.indices)[0])

    def number_into(
        self, first: Integers, columns: tuple[int, int], out: Array
    ) -> None:
        """Writes segment ids: the document number of each token, counted from 1 within each window.

        Args:
            first: First token of each window, int64[n].
            columns: Columns of the window to write, `(low, high)`.
            out: Destination, [n, high - low].
        """
        low, high = columns
        begun = np.searchsorted(self.begins, first, side="right")
        before = np.searchsorted(self.begins, first + low, side="right")
        within = (
            np.searchsorted(self.begins, first + (high - 1), side="right") - before
        )
        steps = np.zeros((len(first), high - low), np.int32)
        steps[:, 0] = 1 + before - begun
        windows = np.repeat(np.arange(len(first)), within)
        begins = self.begins[indices(before, within)]
        steps[windows, begins - first[windows] - low] = 1
        out[...] = np.cumsum(steps, axis=1, dtype=np.int32)


class TokenLeaf(NamedTuple):
    """Tokens `[offset, offset + length)` of each window, or their segment ids."""

    name: str
    offset: int
    length: int


@final
class TokenSource(BaseSource):
    """Row i: the `seq_len + 1` tokens of a stream from token `i * stride` on.

    Args:
        tokens: The stream.
        documents: Document number of each token, as one more leaf; None: without.
        seq_len: Number of tokens that a row predicts.
        stride: Tokens from the start of one row to the start of the next.
        targets: Whether a row is `inputs` and `targets`, each of `seq_len`, instead of `tokens`.

    Raises:
        SourceError: When the stream is shorter than one row.
    """

    spec: Tree = None

    def __init__(
        self,
        tokens: StreamArray,
        documents: SegmentIds | None,
        seq_len: int,
        stride: int,
        targets: bool,
    ):
        self._tokens = tokens
        self.row_tokens = seq_len
        self._documents = documents
        self._seq_len = seq_len
        self._stride = stride
        self._length = max(0, (len(tokens) - seq_len - 1) // stride + 1)
        if not self._length:
            what = (
                f"{_named(tokens)}: {count_text(len(tokens), 'token')}, less than "
                f"one row of seq_len + 1 = {seq_len + 1}"
            )
            raise SourceError(f"{what}; pass a smaller seq_len, or more files")
        shifted = [TokenLeaf("inputs", 0, seq_len), TokenLeaf("targets", 1, seq_len)]
        if targets:
            self._leaves = shifted
        else:
            self._leaves = [TokenLeaf("tokens", 0, seq_len + 1)]
        if documents is not None:
            # In leaf order.
            self._leaves = sorted(
                [*self._leaves, TokenLeaf("segment_ids", 0, seq_len + (not targets))]
            )
        self.traits = Traits(
            owns_memory=True,
            reads_columns=True,
            concurrent_reads=4 if tokens.far else 1,
        )
        dtypes = {"segment_ids": np.dtype(np.int32)}
        kinds = [dtypes.get(leaf.name, tokens.spec.dtype) for leaf in self._leaves]
        self.spec = {
            leaf.name: ArraySpec((leaf.length,), kind)
            for leaf, kind in zip(self._leaves, kinds, strict=True)
        }

    def __repr__(self) -> str:
        kind = self._tokens.spec.dtype
        stream = redact(_named(self._tokens))
        return (
            f"{self._seq_len} + 1 of {len(self._tokens)} {kind} tokens, every "
            f"{self._stride}, in {stream}"
        )

    def read(self, rows: Integers) -> Tree:
        return read_columns(self, check_rows(rows, self._length))

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        first = check_rows(rows, self._length) * self._stride
        wanted: list[tuple[int, int, Array]] = []
        for leaf, columns, destination in zip(self._leaves, boxes, out, strict=True):
            if columns is None or destination is None or not destination.size:
                continue
            if leaf.name == "segment_ids":
                assert self._documents is not None
                self._documents.number_into(first, columns[0], destination)
            else:
                wanted.append(
                    (
                        leaf.offset + columns[0][0],
                        leaf.offset + columns[0][1],
                        destination,
                    )
                )
        if len(wanted) > 1 and self._tokens.far:
            # Inputs and targets share all tokens but one: both are cut from one read.
            low = min(request[0] for request in wanted)
            high = max(request[1] for request in wanted)
            both = self._tokens.spans(first + low, high - low, ())
            for start, stop, destination in wanted:
                destination[...] = both[:, start - low : stop - low]
        else:
            for start, stop, destination in wanted:
                self._tokens.spans_into(first + start, stop - start, (), destination)

    def wanted(self, visits: Visits) -> list[Wanted]:
        first = check_rows(visits.rows, self._length) * self._stride
        return self._tokens.wanted(first, self._seq_len + 1)

    @property
    def known_files(self) -> "KnownFiles":
        return self._tokens.known_files

    @property
    def addresses(self) -> list[str]:
        return [
            *self._tokens.addresses,
            *(self._documents.indices if self._documents else ()),
        ]

    def locate(self, row: int) -> list[Location]:
        """Files of a row, each with its first and last byte."""
        start = int(check_rows([row], self._length)[0]) * self._stride
        return self._tokens.locate(start, start + self._seq_len + 1)


def open_tokens(
    path: Any,
    seq_len: Any,
    dtype: Any,
    stride: Any,
    targets: bool,
    segment_ids: bool,
    cache: Any,
    cache_bytes: int,
    metadata: "Metadata | None" = None,
) -> TokenSource:
    """Opens a stream of tokens; see `loadax.from_tokens`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        SourceError: When a file is missing, cut short or mislabelled, or dtypes differ; names it.
    """
    seq_len = integer("seq_len", seq_len, 1)
    if stride is None:
        stride = seq_len
    else:
        stride = integer("stride", stride, 1)
    for name, value in {"targets": targets, "segment_ids": segment_ids}.items():
        flag(name, value)
    token_files = find_token_files(
        path, dtype, segment_ids, files_with_cache(cache, cache_bytes, metadata)
    )
    if segment_ids:
        documents = SegmentIds(token_files)
    else:
        documents = None
    return TokenSource(
        open_token_stream(token_files), documents, seq_len, stride, targets
    )


def _named(tokens: StreamArray) -> str:
    first, *others = tokens.addresses
    if others:
        return f"{first} and {len(others)} more"
    return first
