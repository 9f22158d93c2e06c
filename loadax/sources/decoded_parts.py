"""DecodedParts: LRU cache of decoded parts of files."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, final

from loadax.protocols import Integers

Part = TypeVar("Part")


@final
class DecodedParts(Generic[Part]):
    """LRU cache of decoded parts of files. Thread-safe: each is decoded by one thread.

    Args:
        decode: Decodes the part of a number.
        size: Bytes of a decoded part.
        most: Size limit in bytes; the least recently used parts are evicted first.
        least: Number of parts to keep even if they take more.
    """

    def __init__(
        self,
        decode: Callable[[int], Part],
        size: Callable[[int], int],
        most: int,
        least: int,
    ):
        self._decode = decode
        self._size = size
        self._most = most
        self._least = least
        self._lock = threading.Lock()
        # by number, last used last
        self._kept: OrderedDict[int, Future[Part]] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # An empty cache of the same size in another process.
        return DecodedParts, (self._decode, self._size, self._most, self._least)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, number: int) -> Part:
        """The decoded part."""
        with self._lock:
            future = self._kept.get(number)
            mine = future is None
            if future is None:
                future = self._kept[number] = Future()
                self._bytes += self._size(number)
                self._evict()
            else:
                self._kept.move_to_end(number)
        if mine:
            try:
                future.set_result(self._decode(number))
            except BaseException as error:
                with self._lock:
                    if self._kept.get(number) is future:
                        del self._kept[number]
                        self._bytes -= self._size(number)
                future.set_exception(error)
                raise
        return future.result()

    def lacks(self, numbers: Integers) -> list[int]:
        """Those of some parts that are neither decoded nor being decoded."""
        with self._lock:
            return [number for number in numbers.tolist() if number not in self._kept]

    def _evict(self) -> None:
        while self._bytes > self._most and len(self._kept) > max(1, self._least):
            number, _ = self._kept.popitem(last=False)
            self._bytes -= self._size(number)
