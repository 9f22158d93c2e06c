"""TokenSource: windows of a token stream in flat files."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import flag, integer
from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Columns, Integers, Location, Tree
from loadax.redaction import redact
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows
from loadax.sources.io.byte_stream import Ends
from loadax.sources.io.disk_cache import open_cache
from loadax.sources.io.remote_stream import ByteStream, open_stream
from loadax.sources.tokens.files import TokenFiles, find_token_files
from loadax.sources.tokens.megatron import Documents


class Leaf(NamedTuple):
    """Tokens `[offset, offset + length)` of each window, or their segment ids."""

    name: str
    offset: int
    length: int


@final
class TokenSource(BaseSource):
    """Row i: the `seq_len + 1` tokens of a stream from token `i * stride` on.

    Args:
        token_files: Files of the stream.
        reader: Reader of their bytes.
        seq_len: Number of tokens that a row predicts.
        stride: Tokens from the start of one row to the start of the next.
        targets: Whether a row is `inputs` and `targets`, each of `seq_len`, instead of `tokens`.
        segment_ids: Whether to add the document number of each token.

    Raises:
        SourceError: When the stream is shorter than one row.
    """

    spec: Tree = None

    def __init__(
        self, token_files: TokenFiles, reader: ByteStream, seq_len: int, stride: int, targets: bool, segment_ids: bool
    ):
        stream = reader.ends
        self._stream, self._reader, self._stride = stream, reader, stride
        self._stored = token_files.entries[0].dtype
        self._tokens = stream.total // self._stored.itemsize
        self._length = max(0, (self._tokens - seq_len - 1) // stride + 1)
        self._seq_len = seq_len
        if not self._length:
            raise SourceError(
                f"{_named(stream)}: {self._tokens} tokens are less than one row of seq_len + 1 = {seq_len + 1}; "
                "pass a smaller seq_len, or more files"
            )
        self._leaves = (
            [Leaf("inputs", 0, seq_len), Leaf("targets", 1, seq_len)] if targets else [Leaf("tokens", 0, seq_len + 1)]
        )
        self._documents: Documents | None = None
        if segment_ids:
            # In leaf order.
            self._leaves = sorted([*self._leaves, Leaf("segment_ids", 0, seq_len + (not targets))])
            offsets = (stream.begins // self._stored.itemsize).tolist()
            self._documents = Documents(
                token_files.files, [str(entry.index_file) for entry in token_files.entries], offsets
            )
        self.traits = Traits(owns_memory=True, reads_columns=True, concurrent_reads=4 if reader.far else 1)
        native = self._stored.newbyteorder("=")
        self.spec = {
            leaf.name: ArraySpec((leaf.length,), np.dtype(np.int32) if leaf.name == "segment_ids" else native)
            for leaf in self._leaves
        }

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        kind = self._stored.newbyteorder("=")
        stream = redact(_named(self._stream))
        return f"{self._seq_len} + 1 of {self._tokens} {kind} tokens, every {self._stride}, in {stream}"

    def read(self, rows: Integers) -> Tree:
        rows = check_rows(rows, self._length)
        out: list[Any] = [np.empty((len(rows), *spec.shape), spec.dtype) for spec in self.spec.values()]
        self.read_into(rows, [((0, leaf.length),) for leaf in self._leaves], out)
        return dict(zip(self.spec, out, strict=True))

    def read_into(self, rows: Integers, boxes: Sequence[Columns | None], out: Sequence[NDArray[Any] | None]) -> None:
        first = check_rows(rows, self._length) * self._stride
        wanted: list[tuple[int, int, NDArray[Any]]] = []
        for leaf, columns, destination in zip(self._leaves, boxes, out, strict=True):
            if columns is None or destination is None or not destination.size:
                continue
            if leaf.name == "segment_ids":
                assert self._documents is not None
                self._documents.number_into(first, columns[0], destination)
            else:
                wanted.append((leaf.offset + columns[0][0], leaf.offset + columns[0][1], destination))
        if len(wanted) > 1 and self._reader.far:
            # Inputs and targets share all tokens but one: both are cut from one read.
            low, high = min(request[0] for request in wanted), max(request[1] for request in wanted)
            both = np.empty((len(first), high - low), self._stored)
            self._copy(first + low, both)
            for start, stop, destination in wanted:
                destination[...] = both[:, start - low : stop - low]
        else:
            for start, _, destination in wanted:
                self._copy(first + start, destination)

    @property
    def addresses(self) -> list[str]:
        return [*self._stream.locations, *(self._documents.indices if self._documents else ())]

    def locate(self, row: int) -> list[Location]:
        """Files of a row, each with its first and last byte."""
        start = int(check_rows([row], self._length)[0]) * self._stride * self._stored.itemsize
        return self._stream.locate(start, start + (self._seq_len + 1) * self._stored.itemsize)

    def _copy(self, starts: Integers, destination: NDArray[Any]) -> None:
        """Reads the tokens from each of `starts` on, in the destination's dtype."""
        straight = destination.dtype == self._stored and destination.strides[1] == self._stored.itemsize
        stored = destination if straight else np.empty(destination.shape, self._stored)
        self._reader.read_into(starts * self._stored.itemsize, stored.view(np.uint8))
        if not straight:
            destination[...] = stored


def open_tokens(
    path: Any,
    seq_len: int,
    dtype: Any = None,
    stride: int | None = None,
    targets: bool = False,
    segment_ids: bool = False,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
) -> TokenSource:
    """Opens a stream of tokens; see `loadax.from_tokens`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        SourceError: When a file is missing, cut short or mislabelled, or dtypes differ; names it.
    """
    seq_len = integer("seq_len", seq_len, 1)
    stride = seq_len if stride is None else integer("stride", stride, 1)
    for name, value in {"targets": targets, "segment_ids": segment_ids}.items():
        flag(name, value)
    blocks = open_cache(cache, cache_bytes)
    token_files = find_token_files(path, dtype, segment_ids)
    reader = open_stream([entry.segment for entry in token_files.entries], token_files.files, blocks)
    return TokenSource(token_files, reader, seq_len, stride, targets, segment_ids)


def _named(stream: Ends) -> str:
    first, *others = stream.segments
    return f"{first.location} and {len(others)} more" if others else first.location
