"""RowCache: rows that a worker has filled, for other jobs with the same recipe."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count
from typing import TypeAlias, final

from loadax.loader.assembly.buffer_layout import BatchBuffers

# Digest of the recipe, epoch, row.
Key: TypeAlias = tuple[str, int, int]


@final
class RowCache:
    """Rows of the pieces that were filled or asked for last, in bounded memory. Thread-safe.

    Args:
        most: Largest number of bytes.
    """

    def __init__(self, most: int):
        self._most = most
        self._lock = threading.Lock()
        self._numbers = count()
        self._pieces: OrderedDict[int, tuple[Sequence[Key], BatchBuffers]] = OrderedDict()
        self._places: dict[Key, tuple[int, int]] = {}  # number of the piece, and the row in it
        self._bytes = 0

    def find(self, keys: Sequence[Key]) -> list[tuple[BatchBuffers, int] | None]:
        """For each key, the buffers with its row and the row in them; None: it is not kept."""
        with self._lock:
            places = [self._places.get(key) for key in keys]
            for number in {place[0] for place in places if place is not None}:
                self._pieces.move_to_end(number)
            return [None if place is None else (self._pieces[place[0]][1], place[1]) for place in places]

    def keep(self, keys: Sequence[Key], buffers: BatchBuffers) -> None:
        """Keeps the rows of a piece, which nobody writes to any more, except for padding."""
        with self._lock:
            number = next(self._numbers)
            self._pieces[number] = keys, buffers
            self._bytes += buffers.memory.nbytes
            self._places.update({key: (number, row) for row, key in enumerate(keys) if key[2] >= 0})
            while self._bytes > self._most:
                oldest, (gone, memory) = self._pieces.popitem(last=False)
                self._bytes -= memory.memory.nbytes
                for key in gone:
                    if self._places.get(key, (None,))[0] == oldest:
                        del self._places[key]
