"""Refuses the files of a Delta, Iceberg, Hudi or Lance table, unless they are those that count.

In the folder of such a table are also files that it has replaced, or deleted rows of; its log says which ones count.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from loadax.core.formatting import with_article
from loadax.errors import SourceError
from loadax.files.files import Files
from loadax.files.paths import is_remote, local_path

_SCAN = "loadax.from_arrow(pyiceberg.table.StaticTable.from_metadata({1!r}).scan().to_arrow())"
_HUDI = "loadax.from_arrow(pyarrow.Table.from_batches(hudi.HudiTable({0!r}).read()))"
# folder of the log, ending of a file there, call that reads the folder {0} of newest file {1}, package
_FORMATS = {
    "Delta": (
        "_delta_log",
        "",
        "loadax.from_parquet(deltalake.DeltaTable({0!r}).file_uris())",
        "deltalake",
    ),
    "Iceberg": ("metadata", ".metadata.json", _SCAN, "'pyiceberg[pyarrow]'"),
    "Hudi": (".hoodie", ".properties", _HUDI, "hudi"),
    "Lance": (
        "_versions",
        ".manifest",
        "loadax.from_arrow(lance.dataset({0!r}).to_table())",
        "pylance",
    ),
}


def refuse_tables(paths: Any, locations: Sequence[str], files: Files) -> None:
    """Refuses files in the folder of a table, unless each one was named, and counts according to the log.

    Args:
        paths: Argument of `from_parquet`.
        locations: Files of the argument; empty: it names none.
        files: Reader.

    Raises:
        SourceError: When there is such a table; says how to read it.
    """
    named = {
        _plain(os.fspath(path))
        for path in (paths if isinstance(paths, list | tuple) else [paths])
    }
    chosen = {
        unquote(location) if is_remote(location) else location
        for location in locations
    }
    for folder, name, newest in _tables(
        {file.rpartition("/")[0] for file in chosen} or named, files
    ):
        within = {file for file in chosen if file.startswith(f"{folder}/")}
        *_, call, package = _FORMATS[name]
        what = (
            f"{folder} is {with_article(name)} table, whose log says which of its "
            "files count"
        )
        try:
            outdated = within - (
                _current_files(folder)
                if name == "Delta" and within and within <= named
                else set()
            )
        except (
            Exception
        ) as error:  # of a library that is missing, or can't read this table
            reason = str(error).partition("\n")[0]
            raise SourceError(
                f"{what}, but it can't be read: {reason}; pip install {package}"
            ) from error
        if outdated or not within:
            what = (
                f"{min(outdated, default=folder)}: {what}; read it with "
                f"{call.format(folder, newest)}"
            )
            raise SourceError(
                f"{what} (pip install {package}). Files of which single rows were "
                "deleted can't be read"
            )


def _current_files(folder: str) -> set[str]:
    """The files of a Delta table of which all rows count."""
    import deltalake

    table = deltalake.DeltaTable(folder)
    vectors = "deletionVectors" in (table.protocol().reader_features or ())
    if vectors:
        partial = pa.table(table.deletion_vectors())["filepath"].to_pylist()
    else:
        partial = []
    return set(map(_plain, table.file_uris())) - set(map(_plain, partial))


def _tables(places: Iterable[str], files: Files) -> Iterator[tuple[str, str, str]]:
    """The tables at files and folders and above: folder, format, newest file of the log."""
    folders = {
        place[: match.start()]
        for place in places
        for match in re.finditer(r"(?<=[^:/])/|$", place)
    }
    asked = [
        (folder, name)
        for folder in sorted(folders)
        if "*" not in folder
        for name in _FORMATS
    ]
    logs = files.first_names(
        [f"{folder}/{_FORMATS[name][0]}/" for folder, name in asked]
    )
    for (folder, name), names in zip(asked, logs, strict=True):
        log, ending, *_ = _FORMATS[name]
        numbered = [
            (int(re.sub(r"\D.*", "", each.lstrip("v")) or 0), each)
            for each in names
            if each.endswith(ending)
        ]
        if numbered:  # as `00002-….metadata.json`, `v2.metadata.json`
            yield folder, name, f"{folder}/{log}/{max(numbered)[1]}"


def _plain(location: str) -> str:
    local = local_path(location)
    if local is None:
        return unquote(location).rstrip("/")
    return str(local)
