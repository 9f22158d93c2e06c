"""MaskErrors: what to do with rows that can't be read, and the rows that are never read."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from loadax.core.arguments import choice, integer, path as checked_path, shown
from loadax.core.distributed import this_process
from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.errors import ArgumentError, StorageError
from loadax.protocols import Integers

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
_BEGINNING = '{"id": '  # of each line of a record


@final
@dataclass(frozen=True)
class MaskErrors:
    """Masks rows that can't be read, instead of ending the run: `Dataloader(…, on_error=MaskErrors(…))`.

    A row whose reading or map fails has zeros in its place, and False in the leaf "mask" that every batch then has. All
    other rows are where they would be without it. What a network, a disk or too little memory does is not masked
    (`OSError`s but those of broken images, `StorageError`, `MemoryError`), since other hosts may have read the row
    well; neither are interrupts, nor mistakes of loadax itself. Rows are read whole, so that all hosts mask the same.

    Args:
        max_in_a_row: Most rows that may fail one after the other in what this process reads.
        max_share: Largest share of the rows that this process reads that may fail. The first ten rows always may.
        record: Local file to which each masked row is appended as a line of JSON: dataset, row, file and byte range,
            step and error. A `Dataloader` creates it. Pass it as `quarantine` to later runs, and these rows are never
            read again. Process i > 0 of several appends "-i" to its name.

    Raises:
        ArgumentError: If a limit is out of range.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader, MaskErrors, from_arrays
        >>> data = from_arrays({"x": np.arange(16.0)}).map(lambda row: {"x": 1 / row["x"]} if row["x"] else 1 / 0)
        >>> batch = next(iter(Dataloader(data, batch_size=8, on_error=MaskErrors())))
        >>> batch["mask"].tolist()[:3], batch["x"].tolist()[:3]
        ([False, True, True], [0.0, 1.0, 0.5])
    """

    max_in_a_row: int = 100
    max_share: float = 1e-3
    record: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        integer("max_in_a_row", self.max_in_a_row, 1)
        number = isinstance(self.max_share, int | float) and not isinstance(
            self.max_share, bool
        )
        if not number or not 0 <= self.max_share <= 1:
            raise ArgumentError(
                f"max_share={shown(self.max_share)}: pass a number from 0 to 1"
            )
        if self.record is not None:
            _local_path("record", self.record, "the path of a file")


def masking_of(on_error: Any) -> MaskErrors | None:
    """Validates `on_error`; None: errors are raised.

    Creates the record of this process, if there is none: before the run, which a record that fails would end.

    Returns:
        The same with the absolute path of the record, since the current folder may change.

    Raises:
        ArgumentError: If it is none of the known values, or the record can't be written.
    """
    if not isinstance(on_error, MaskErrors):
        chosen = choice(
            "on_error",
            on_error,
            ("raise", "mask"),
            "'raise', 'mask', or loadax.MaskErrors(…)",
        )
        if chosen == "mask":
            return MaskErrors()
        return None
    if on_error.record is None:
        return on_error
    try:
        os.close(_open(on_error.record))
    except OSError as error:
        raise ArgumentError(
            f"record={shown(os.fspath(on_error.record))} can't be written: "
            f"{error.strerror}; pass the path of a file in a folder that exists"
        ) from error
    return replace(
        on_error, record=Path(checked_path("record", on_error.record)).absolute()
    )


def quarantined_rows(quarantine: Any, num_rows: int) -> Integers:
    """Validates `quarantine`: sorted int64[n] of rows of a dataset with `num_rows` rows.

    Raises:
        ArgumentError: If a file is not a record of this dataset, or a row is out of range.
    """
    if quarantine is None:
        rows: Any = []
    elif isinstance(quarantine, str | os.PathLike):
        given = _local_path(
            "quarantine", quarantine, "the record of MaskErrors, or row ids"
        )
        rows = [
            row for path in _records(given) for row in _rows_of_record(path, num_rows)
        ]
    elif (
        isinstance(quarantine, np.ndarray)
        and quarantine.ndim == 1
        and quarantine.dtype.kind in "iu"
    ):
        rows = np.sort(quarantine)
        for outermost in (*rows[:1], *rows[-1:]):
            integer("a row of quarantine", outermost, 0, num_rows - 1)
    elif isinstance(quarantine, Iterable):
        rows = [
            integer("a row of quarantine", row, 0, num_rows - 1) for row in quarantine
        ]
    else:
        raise ArgumentError(
            f"quarantine={shown(quarantine)}: pass the record of MaskErrors, or row "
            "ids"
        )
    # `np.unique` is many times slower for a million rows
    ascending = np.sort(np.array(rows, np.int64))
    return ascending[np.diff(ascending, prepend=-1) > 0]


def append_record(record: str | os.PathLike[str], entry: Mapping[str, Any]) -> None:
    """Appends an entry to the record of this process.

    Raises:
        StorageError: If it can't be written whole. The next entry begins a new line.
    """
    line = (json.dumps(entry) + "\n").encode()
    try:
        with open(_open(record), "r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                line = b"\n" + line
            # One write of one line, so that several runs may append. On a full disk, the second one says so.
            while line:
                line = line[file.write(line) :]
    except OSError as error:
        raise StorageError(
            f"{_own_record(record)}, the record of masked rows, can't be written: "
            f"{error.strerror}; make room on its disk, and start again from the last "
            "saved state"
        ) from error


def _own_record(record: str | os.PathLike[str]) -> Path:
    """File to which this process appends its masked rows."""
    path = Path(checked_path("record", record))
    process = this_process().index
    if process:
        return path.with_stem(f"{path.stem}-{process}")
    return path


def _open(record: str | os.PathLike[str]) -> int:
    return os.open(_own_record(record), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)


def _local_path(name: str, value: Any, wanted: str) -> Path:
    text = checked_path(name, value, wanted)
    if _URL.match(text):  # of a pathlib.Path, one slash is left
        url = _URL.sub(r"\1://", text)
        raise ArgumentError(
            f"{name}={shown(url)} is a URL: pass {wanted}, in a local folder"
        )
    return Path(text)


def _records(path: Path) -> list[Path]:
    """The files of all processes that recorded there."""
    others = (
        other
        for other in path.parent.glob(f"*{path.suffix}")
        if other.stem.startswith(f"{path.stem}-")
    )
    paths = [
        path,
        *(other for other in others if other.stem[len(path.stem) + 1 :].isdecimal()),
    ]
    present = sorted(other for other in paths if other.is_file())
    if not present:
        raise ArgumentError(
            f"quarantine={shown(os.fspath(path))}: there is no such file; pass the "
            "record of MaskErrors(record=…)"
        )
    return present


def _rows_of_record(path: Path, num_rows: int) -> Iterable[int]:
    for number, written in enumerate(
        path.read_text("utf-8", errors="replace").splitlines(), 1
    ):
        # older versions went on in the line of one that was cut
        line = written[max(0, written.rfind(_BEGINNING)) :]
        try:
            entry = json.loads(line)
            row = int(entry["id"])
            rows = int(entry["rows"])
        except (
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            begins = line.startswith(_BEGINNING) or _BEGINNING.startswith(line)
            if isinstance(error, json.JSONDecodeError) and begins:
                log.warning(
                    "quarantine: line %d of %s is unfinished, so its row is read "
                    "again",
                    number,
                    path,
                )
                continue
            raise ArgumentError(
                f"quarantine: line {number} of {path} is not a record of a masked "
                f"row: {shown(line)}; pass the record of MaskErrors, or the row ids "
                "as a list"
            ) from error
        if rows != num_rows or not 0 <= row < num_rows:
            raise ArgumentError(
                f"quarantine: line {number} of {path} is about row {row} of a "
                f"dataset with {count_text(rows, 'row')}, and this one has "
                f"{num_rows}; pass the record of runs of this dataset"
            )
        if line != written:
            log.warning(
                "quarantine: a record in line %d of %s is unfinished, so its row is "
                "read again",
                number,
                path,
            )
        yield row
