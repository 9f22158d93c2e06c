"""Reads byte ranges of remote files through the local block cache."""

from collections.abc import Mapping, Sequence
from typing import final

from loadax.sources.io.byte_ranges import ByteRange
from loadax.sources.io.disk_cache import BLOCK, DiskCache
from loadax.sources.io.files import Files

_JOINED = 64  # most blocks in one request: 8 MiB


@final
class CachedFiles:
    """Reads byte ranges from the cache; on a miss, fetches whole blocks and stores them.

    The key of a block includes the file's identity, so that a replaced file is fetched again.

    Args:
        files: Reader of the files.
        cache: Cache of their blocks.
        extents: Number of readable bytes of each file, by location.

    Raises:
        ArgumentError: When the cache can't be written.
    """

    def __init__(self, files: Files, cache: DiskCache, extents: Mapping[str, int]):
        self._files, self._cache, self._extents = files, cache, dict(extents)
        cache.create()

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        wanted = sorted({(byte_range.location, block) for byte_range in ranges for block in _blocks(byte_range)})
        locations = sorted({location for location, _ in wanted})
        identities = dict(zip(locations, self._files.identities(locations), strict=True))
        names = {
            (location, block): self._cache.name(identities[location], self._range(location, block))
            for location, block in wanted
        }
        contents = {key: self._cache.get(names[key], self._range(*key)) for key in wanted}
        runs = _runs([key for key in wanted if contents[key] is None])
        asked = [ByteRange(location, first * BLOCK, self._range(location, last).stop) for location, first, last in runs]
        for (location, first, last), content in zip(runs, self._files.read(asked), strict=True):
            for block in range(first, last + 1):
                part = content[(block - first) * BLOCK :][:BLOCK]
                contents[location, block] = part
                self._cache.put(names[location, block], part)
        return [self._cut(byte_range, contents) for byte_range in ranges]

    def _cut(self, wanted: ByteRange, contents: Mapping[tuple[str, int], bytes | None]) -> bytes:
        blocks = _blocks(wanted)
        joined = b"".join(contents[wanted.location, block] or b"" for block in blocks)
        start = wanted.start - blocks.start * BLOCK
        return joined[start : start + wanted.stop - wanted.start]

    def _range(self, location: str, block: int) -> ByteRange:
        return ByteRange(location, block * BLOCK, min((block + 1) * BLOCK, self._extents[location]))


def _blocks(wanted: ByteRange) -> range:
    return range(wanted.start // BLOCK, -(-wanted.stop // BLOCK))


def _runs(keys: Sequence[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """Joins consecutive blocks, sorted, into `(location, first, last)`."""
    runs: list[tuple[str, int, int]] = []
    for location, block in keys:
        if runs and runs[-1][0] == location and runs[-1][2] == block - 1 and block - runs[-1][1] < _JOINED:
            runs[-1] = (location, runs[-1][1], block)
        else:
            runs.append((location, block, block))
    return runs
