"""Reads byte ranges of remote files through the local block cache."""

from collections.abc import Mapping, Sequence
from typing import final

from loadax.sources.io.byte_ranges import ByteRange
from loadax.sources.io.disk_cache import BLOCK, DiskCache
from loadax.sources.io.files import Files


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
        names = {key: self._cache.name(identities[key[0]], self._range(*key)) for key in wanted}
        contents = {key: self._cache.get(names[key], self._range(*key)) for key in wanted}
        missing = [key for key in wanted if contents[key] is None]
        for key, content in zip(missing, self._files.read([self._range(*key) for key in missing]), strict=True):
            contents[key] = content
            self._cache.put(names[key], content)
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
