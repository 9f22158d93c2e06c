"""RowCache: rows that a worker has filled, for other jobs with the same payload."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias, final

from loadax.loader.assembly.buffer_layout import BatchBuffers

# Digest of the payload, epoch, row.
Key: TypeAlias = tuple[str, int, int]


@final
class RowCache:
    """Rows of the pieces that were filled last, in bounded memory. Thread-safe.

    Args:
        most: Largest number of bytes.
    """

    def __init__(self, most: int):
        self._most = most
        self._lock = threading.Lock()
        self._pieces: deque[tuple[Sequence[Key], BatchBuffers]] = deque()
        self._rows: dict[Key, tuple[BatchBuffers, int]] = {}
        self._bytes = 0

    def find(self, keys: Sequence[Key]) -> list[tuple[BatchBuffers, int] | None]:
        """For each key, the buffers with its row and the row in them; None: it is not there."""
        with self._lock:
            return [self._rows.get(key) for key in keys]

    def add(self, keys: Sequence[Key], buffers: BatchBuffers) -> None:
        """Adds the rows of a piece, which nobody writes to any more, except for padding."""
        with self._lock:
            self._pieces.append((keys, buffers))
            self._rows.update(
                {key: (buffers, row) for row, key in enumerate(keys) if key[2] >= 0}
            )
            self._bytes += buffers.memory.nbytes
            while self._bytes > self._most:
                gone, oldest = self._pieces.popleft()
                self._bytes -= oldest.memory.nbytes
                for key in gone:
                    if self._rows.get(key, (None,))[0] is oldest:
                        del self._rows[key]
