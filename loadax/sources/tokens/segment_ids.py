"""SegmentIds: document number of each token of a window, from Megatron's `.idx` files."""

from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import Integers
from loadax.sources.io.byte_stream import indices
from loadax.sources.tokens.files import TokenFiles
from loadax.sources.tokens.megatron import read_documents


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
        return np.unique(read_documents(self._files, self.indices)[0])

    def number_into(self, first: Integers, columns: tuple[int, int], out: NDArray[Any]) -> None:
        """Writes segment ids: the document number of each token, counted from 1 within each window.

        Args:
            first: First token of each window, int64[n].
            columns: Columns of the window to write, `(low, high)`.
            out: Destination, [n, high - low].
        """
        low, high = columns
        begun = np.searchsorted(self.begins, first, side="right")
        before = np.searchsorted(self.begins, first + low, side="right")
        within = np.searchsorted(self.begins, first + (high - 1), side="right") - before
        steps = np.zeros((len(first), high - low), np.int32)
        steps[:, 0] = 1 + before - begun
        windows = np.repeat(np.arange(len(first)), within)
        begins = self.begins[indices(before, within)]
        steps[windows, begins - first[windows] - low] = 1
        out[...] = np.cumsum(steps, axis=1, dtype=np.int32)
