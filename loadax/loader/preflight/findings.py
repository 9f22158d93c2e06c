"""Findings: what the check of some rows found, as arrays that a pass keeps and merges."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.kept.index_folder import Entry
from loadax.kept.parts import Arrays
from loadax.protocols import Integers

NOT_FINITE = 0
BELOW = 1
ABOVE = 2
MOST_SLOW = 16  # pieces that a part keeps
MOST_FILES = 64  # files that a part keeps

# Columns of each array, and its dtype.
COLUMNS = {
    "failed": (3, np.int64),
    "flagged": (5, np.int64),
    "extremes": (4, np.float64),
    "slow": (6, np.float64),
    "read": (9, np.float64),
}

Floats = NDArray[np.float64]


class Findings(NamedTuple):
    """Findings in some rows. Visits are numbers of a `Portion`.

    Args:
        failed: Portion, visit, and index in `errors`, int64[n, 3]: of each row that fails.
        flagged: Portion, leaf, visit, kind (`NOT_FINITE`, `BELOW`, `ABOVE`), and the number of its values, int64[n, 5].
        extremes: Portion, leaf, and least and greatest finite value, float64[n, 4].
        slow: Portion, first and last row, number of rows, CPU seconds and seconds a row, float64[n, 6]: slowest pieces.
        read: Portion, part, and sums of its pieces, float64[n, 9]: rows, seconds, CPU seconds; rows whose place in a
            file is known, and their bytes; requests, and their bytes.
        errors: Errors of the failed rows.
        files: File, rows that were timed as of it, and their seconds.
    """

    failed: Integers
    flagged: Integers
    extremes: Floats
    slow: Floats
    read: Floats
    errors: list[str]
    files: list[tuple[str, int, float]]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The findings as arrays alone."""
        texts = json.dumps([self.errors, self.files]).encode()
        arrays: dict[str, NDArray[Any]] = {
            name: getattr(self, name) for name in COLUMNS
        }
        return {**arrays, "texts": np.frombuffer(texts, np.uint8)}


def findings_of(arrays: Arrays) -> Findings:
    """The findings in arrays.

    Raises:
        ValueError: If an array has another form.
    """
    for name, (columns, dtype) in COLUMNS.items():
        array = arrays[name]
        if array.dtype != dtype or array.shape[1:] != (columns,):
            raise ValueError(f"{name} has another form")
    errors, files = json.loads(arrays["texts"].tobytes())
    if arrays["failed"][:, 2].max(initial=-1) >= len(errors):
        raise ValueError("failed rows lack their errors")
    return Findings(
        failed=arrays["failed"],
        flagged=arrays["flagged"],
        extremes=arrays["extremes"],
        slow=arrays["slow"],
        read=arrays["read"],
        errors=errors,
        files=[(str(file), int(rows), float(took)) for file, rows, took in files],
    )


def table_of(name: str, rows: Sequence[Sequence[float]]) -> NDArray[Any]:
    """Rows of numbers as the array of this name, which may be empty."""
    columns, dtype = COLUMNS[name]
    return np.array(rows, dtype).reshape(-1, columns)


def merged(parts: Iterator[Arrays]) -> Entry:
    """The findings of all parts, as an entry of an index folder."""
    found = list(map(findings_of, parts))
    shift = 0
    failed = [table_of("failed", [])]
    errors: list[str] = []
    for part in found:
        failed.append(part.failed + np.array([0, 0, shift]))
        errors += part.errors
        shift += len(part.errors)
    slow = _joined("slow", found)
    files: dict[str, tuple[int, float]] = {}
    for part in found:
        for file, rows, seconds in part.files:
            before = files.get(file, (0, 0.0))
            files[file] = (before[0] + rows, before[1] + seconds)
    whole = Findings(
        failed=np.concatenate(failed),
        flagged=_joined("flagged", found),
        extremes=_grouped("extremes", found),
        slow=slow[np.argsort(-slow[:, -1], kind="stable")[:MOST_SLOW]],
        read=_grouped("read", found),
        errors=errors,
        files=slowest(files),
    )
    return Entry(whole.arrays(), {})


def slowest(files: dict[str, tuple[int, float]]) -> list[tuple[str, int, float]]:
    """The files that took the longest for a row, at most `MOST_FILES`."""
    listed = [(file, rows, seconds) for file, (rows, seconds) in files.items()]
    return sorted(listed, key=lambda file: -file[2] / file[1])[:MOST_FILES]


def _joined(name: str, found: Sequence[Findings]) -> NDArray[Any]:
    return np.concatenate(
        [table_of(name, []), *(getattr(part, name) for part in found)]
    )


def _grouped(name: str, found: Sequence[Findings]) -> Floats:
    """One row for each of the pairs in the first two columns: extremes of values, sums of what was read."""
    rows: dict[tuple[float, float], Floats] = {}
    for row in _joined(name, found):
        key = (row[0], row[1])
        before = rows.get(key)
        if before is None:
            rows[key] = row.copy()
        elif name == "extremes":
            before[2] = min(before[2], row[2])
            before[3] = max(before[3], row[3])
        else:
            before[2:] += row[2:]
    return table_of(name, [rows[key] for key in sorted(rows)])  # type: ignore[misc]
