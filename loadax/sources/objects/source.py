"""Opens files of any kind: row i is path and contents of file i, for a map to decode."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from loadax.core.formatting import count_text
from loadax.files.byte_ranges import ByteRange, KnownFiles
from loadax.files.files import Files
from loadax.files.paths import is_remote
from loadax.protocols import ArraySpec, Integers, Location, Tree, Visits
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows
from loadax.sources.expand import expand
from loadax.sources.objects.format import FORMAT
from loadax.sources.shards.records import objects

PATH = "path"
BYTES = "bytes"
_LARGEST = 1 << 40  # bytes of a file: more than fit into memory


@final
class WholeFileSource(BaseSource):
    """Rows `{"path": str, "bytes": bytes}`, one a file. Each is read whole, by one request if it is remote.

    Args:
        locations: Paths and URLs of the files.
        files: Reader.
    """

    spec: Tree = None
    addresses: Sequence[str] = ()

    def __init__(self, locations: Sequence[str], files: Files):
        self._locations = locations
        self._files = files
        self.addresses = locations
        self.traits = Traits(
            owns_memory=True,
            reads_examples=True,
            # they wait for the network
            concurrent_reads=4 if files.far(locations) else 1,
        )
        anything = ArraySpec((), np.dtype(object))
        self.spec = {PATH: anything, BYTES: anything}

    def __len__(self) -> int:
        return len(self._locations)

    def __repr__(self) -> str:
        return count_text(len(self), "file")

    @property
    def known_files(self) -> KnownFiles:
        return self._files.known

    def locate(self, row: int) -> list[Location]:
        index = int(check_rows([row], len(self))[0])
        return [Location(self._locations[index])]

    def read(self, rows: Integers) -> Tree:
        """Reads the files at `rows`."""
        locations, contents = self._read(rows)
        return {PATH: objects(locations), BYTES: objects(contents)}

    def read_examples(self, visits: Visits) -> list[Tree]:
        locations, contents = self._read(visits.rows)
        return [
            {PATH: location, BYTES: content}
            for location, content in zip(locations, contents, strict=True)
        ]

    def _read(self, rows: Integers) -> tuple[list[str], list[bytes]]:
        rows = check_rows(rows, len(self))
        locations = [self._locations[row] for row in rows.tolist()]
        far = [location for location in locations if is_remote(location)]
        near = [location for location in locations if not is_remote(location)]
        sizes = self._files.sizes(near)
        whole = [
            ByteRange(location, 0, size)
            for location, size in zip(near, sizes, strict=True)
        ]
        # the size of a remote file would be a request more
        contents = dict(
            zip(
                [*far, *near],
                [
                    *self._files.read_starts(far, _LARGEST),
                    *self._files.read(whole),
                ],
                strict=True,
            )
        )
        return locations, [contents[location] for location in locations]


def open_objects(paths: Any) -> WholeFileSource:
    """Opens files; a missing one is an error when it is read.

    Args:
        paths: Path, folder, pattern or URL, or a list of these.
    """
    files = Files()
    return WholeFileSource(expand(paths, FORMAT, files), files)
