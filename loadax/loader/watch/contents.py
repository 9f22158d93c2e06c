"""Digests of a few rows' contents, the same rows on every host."""

from typing import Any

import numpy as np

from loadax import seeds
from loadax.core.fingerprint import fingerprint
from loadax.core.tree import flatten
from loadax.protocols import Integers, Visits
from loadax.reader import Examples, Reader
from loadax.redaction import redact

FIELD = "contents of row "
"""Beginning of the field of each row."""

_PLAIN = (str, bytes, bool, int, float, type(None))


def sampled_rows(num_rows: int) -> list[int]:
    """The last row, since a short copy lacks that, and one or two others."""
    others = np.asarray(seeds.derive(0, "contents", 0, np.arange(1, 3)), np.uint64) % np.uint64(num_rows)
    return sorted({*others.tolist(), num_rows - 1})


def contents(reader: Reader, quarantine: Integers) -> dict[str, list[str]]:
    """Digest and file of each sampled row, as the source has it, by field.

    Maps are left out: their results may depend on the machine. So are rows that can't be read, now or ever.

    Args:
        reader: Reader of the rows.
        quarantine: Rows that are never read: sorted int64[n].
    """
    digests = {}
    for row in sampled_rows(reader.num_rows):
        if row in quarantine:
            continue
        try:
            read = reader.read_source(Visits(np.array([row]), np.array([0])))
            files = [location.file for location in reader.source.locate(row)[:1]]
        except Exception:  # noqa: BLE001, S112 - whoever trains on this row will hear of it
            continue
        digests[f"{FIELD}{row}"] = [_digest(read.items[0] if isinstance(read, Examples) else read), *map(redact, files)]
    return digests


def _digest(tree: Any) -> str:
    leaves, structure = flatten(tree)
    values: Any = [*structure.paths]
    for array in map(np.asarray, leaves):
        # Of other objects the type: their text may have their address, or a folder of this host.
        values += [
            [value if isinstance(value, _PLAIN) else type(value).__name__ for value in array.flat]
            if array.dtype.hasobject
            else array
        ]
    return fingerprint(values).digest
