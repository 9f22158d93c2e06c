"""Digests of a few rows' contents, the same rows on every host."""

import hashlib
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, final

import numpy as np

from loadax import seeds
from loadax.core.tree import flatten
from loadax.protocols import Integers, Visits
from loadax.reader import Examples, Reader
from loadax.redaction import redact

_ROWS = 3
_BRIEFLY = 0.05  # seconds
_PLAIN = (str, bytes, bool, int, float, type(None))

Contents: TypeAlias = Callable[[int], dict[str, list[str]] | None]
"""Function of a sample: digest and file by row; None while they are read."""


def nothing(_: int) -> dict[str, list[str]]:
    """Contents of no rows."""
    return {}


def sampled_rows(num_rows: int, sample: int) -> list[int]:
    """Rows of the `sample`-th sample: the first sample has the last row, since a short copy lacks that."""
    chosen = np.asarray(seeds.derive(0, "contents", sample, np.arange(_ROWS)), np.uint64) % np.uint64(num_rows)
    rows = [int(row) for row in chosen]
    return sorted({*rows[1:], num_rows - 1} if sample == 0 else set(rows))


@final
class ContentsReader:
    """Digests of one sample after the other, as `contents` computes them.

    Args:
        reader: Reader of the rows.
        quarantine: Rows that are never read: sorted int64[n].
        threaded: Whether to read on a thread of its own, since storage may hang. Else the first sample is read now, and
            later ones are empty, for a source that may not be read elsewhere meanwhile.
    """

    def __init__(self, reader: Reader, quarantine: Integers, threaded: bool):
        self._reader, self._quarantine, self._threaded = reader, quarantine, threaded
        self._started = -1
        self._found: dict[int, dict[str, list[str]]] = {} if threaded else {0: contents(reader, quarantine, 0)}

    def __call__(self, sample: int) -> dict[str, list[str]] | None:
        """The digests of a sample; None while it is read."""
        if not self._threaded:
            return self._found.get(sample, {})
        if self._started < sample:
            self._started = sample
            thread = threading.Thread(target=self._read, args=(sample,), name="loadax-contents", daemon=True)
            thread.start()
            thread.join(_BRIEFLY)  # most rows are read by then
        return self._found.get(sample)

    def _read(self, sample: int) -> None:
        self._found[sample] = contents(self._reader, self._quarantine, sample)


def contents(reader: Reader, quarantine: Integers, sample: int) -> dict[str, list[str]]:
    """Digest and file of each sampled row, as the source has it, by the row.

    Maps are left out: their results may depend on the machine. So are rows that can't be read, now or ever.
    """
    digests = {}
    for row in sampled_rows(reader.num_rows, sample):
        if row in quarantine:
            continue
        try:
            read = reader.read_source(Visits(np.array([row]), np.array([0])))
            files = [location.file for location in reader.source.locate(row)[:1]]
        except Exception:  # noqa: BLE001, S112 - whoever trains on this row will hear of it
            continue
        digests[str(row)] = [_digest(read.items[0] if isinstance(read, Examples) else read), *map(redact, files)]
    return digests


def _digest(tree: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    leaves, structure = flatten(tree)
    for path, leaf in zip(structure.paths, leaves, strict=True):
        array = np.asarray(leaf)
        if array.dtype.hasobject:
            # The text of other objects may have their address.
            values = [value if isinstance(value, _PLAIN) else type(value).__name__ for value in array.reshape(-1)]
            data = repr(values).encode()
        else:
            data = np.ascontiguousarray(array).tobytes()
        digest.update(f"{path} {array.dtype} {array.shape} {len(data)} ".encode() + data)
    return digest.hexdigest()
