"""Records: reads byte strings of any lengths from a sequence of files."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.spec import stack
from loadax.files.byte_stream import FileSpan, open_stream
from loadax.files.files import Files
from loadax.files.paths import local_path
from loadax.files.remote_ranges import Wanted
from loadax.kept.index_folder import IndexFolder
from loadax.protocols import ArraySpec, Integers, Location
from loadax.sources.file_index import ENTRY


@final
class Records:
    """Byte ranges of files, each addressed by its first byte in the concatenation of all files.

    Args:
        files: Reader of the files.
        locations: Paths and URLs of the files.
        index: Path of the index folder that says where the ranges are; None: no index.

    Attributes:
        file_begins: First byte of each file in the concatenation.
        addresses: Paths and URLs of the files.
        concurrent_reads: Number of reads to run concurrently.
    """

    def __init__(self, files: Files, locations: Sequence[str], index: Any = None):
        path = "" if index is None else IndexFolder(index).path(ENTRY)
        # Part of the name of a record in errors: the index may be of another file.
        if path:
            self.by_index = (
                f", by its index {path}, to be deleted if the file is right"
            )
        else:
            self.by_index = ""
        segments = [
            FileSpan(
                location,
                0,
                info.size,
                int(info.generation) if local_path(location) is not None else None,
            )
            for location, info in zip(locations, files.infos(locations), strict=True)
        ]
        self._stream = open_stream(segments, files)
        self.file_begins = self._stream.ends.begins
        self.known_files = files.known
        self.addresses = self._stream.ends.locations
        if self._stream.far:
            self.concurrent_reads = 4
        else:
            self.concurrent_reads = 1

    def read(self, begins: Integers, lengths: Integers) -> list[memoryview]:
        """Reads `lengths` bytes from each of `begins` on, int64[n] both; no range crosses the end of a file.

        Raises:
            SourceError: When a file has changed, or can't be read; names it.
        """
        filled = np.flatnonzero(lengths)
        content: Any
        if len(filled):
            content = self._stream.gather(
                begins[filled], lengths[filled], np.dtype(np.uint8)
            )
        else:
            content = b""
        view = memoryview(content)
        ends = np.cumsum(lengths)
        return [
            view[low:high]
            for low, high in zip(
                (ends - lengths).tolist(), ends.tolist(), strict=True
            )
        ]

    def wanted(self, begins: Integers, lengths: Integers) -> list[Wanted]:
        """What `read` will request of remote files."""
        return self._stream.wanted(begins, begins + lengths)

    def locate(self, begin: int, length: int) -> list[Location]:
        """File, first and last byte of a range."""
        return self._stream.ends.locate(begin, begin + max(1, length))

    def name(self, begin: int) -> str:
        """File and byte, for messages."""
        (location,) = self.locate(begin, 1)
        return f"{location.file}, byte {location.first}{self.by_index}"


def stack_examples(
    examples: Sequence[dict[str, Any]], spec: Mapping[str, ArraySpec], rows: Integers
) -> dict[str, Any]:
    """Stacks examples, with strings and bytes, and lists of bytes, as arrays of objects.

    Raises:
        LeafError: When an example differs from the spec; names the row.
    """
    plain = {
        name: leaf
        for name, leaf in spec.items()
        if leaf.shape or not leaf.dtype.hasobject
    }
    columns = stack(
        [{name: example[name] for name in plain} for example in examples],
        plain,
        rows.tolist(),
    )
    return {
        name: columns[name]
        if name in plain
        else objects([one[name] for one in examples])
        for name in spec
    }


def objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """An array of objects, object[n]."""
    array = np.empty(len(values), object)
    array[:] = values
    return array
