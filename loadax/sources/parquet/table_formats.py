"""Refuses the files of a Delta, Iceberg, Hudi or Lance table, unless they are those that count.

In the folder of such a table are also files that it has replaced, or deleted rows of; its log says which ones count.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from loadax.core.formatting import with_article
from loadax.errors import SourceError
from loadax.sources.io.files import Files
from loadax.sources.io.paths import local_path


class _Format(NamedTuple):
    """A table format: folder and ending of its logs, and the call that reads the table, after installing a package."""

    log: str
    ending: str
    call: str
    package: str


_FORMATS = {
    "Delta": _Format(
        "_delta_log", "", "loadax.from_parquet(deltalake.DeltaTable({0!r}).file_uris())", package="deltalake"
    ),
    "Iceberg": _Format(
        "metadata",
        ".metadata.json",
        "loadax.from_parquet([task.file.file_path for task in "
        "pyiceberg.table.StaticTable.from_metadata({1!r}).scan().plan_files()])",
        package="'pyiceberg[pyarrow]'",
    ),
    "Hudi": _Format(
        ".hoodie",
        "hoodie.properties",
        "loadax.from_arrow(pyarrow.Table.from_batches(hudi.HudiTable({0!r}).read()))",
        package="hudi",
    ),
    "Lance": _Format("_versions", "", "loadax.from_arrow(lance.dataset({0!r}).to_table())", package="pylance"),
}


def refuse_tables(paths: Any, locations: Sequence[str], files: Files) -> None:
    """Refuses files in the folder of a table, unless each one was named, and counts according to the log.

    Args:
        paths: Argument of `from_parquet`.
        locations: The files that it stands for; none: where it stands for no files.
        files: Reader.

    Raises:
        SourceError: When there is such a table; says how to read it.
    """
    named = {_plain(os.fspath(path)) for path in (paths if isinstance(paths, list | tuple) else [paths])}
    chosen = set(map(_plain, locations))
    for folder, name, newest in _tables({file.rpartition("/")[0] for file in chosen} or named, files):
        within = {file for file in chosen if file.startswith(f"{folder}/")}
        format_ = _FORMATS[name]
        what = f"{folder} is {with_article(name)} table, whose log says which of its files count"
        try:
            outdated = within - (_current_files(name, folder, newest) if within and within <= named else set())
        except Exception as error:  # of a library that is missing, or can't read this table
            raise SourceError(f"{what}, but it can't be read: {error}; pip install {format_.package}") from error
        if outdated or not within:
            raise SourceError(
                f"{min(outdated, default=folder)}: {what}; read it with {format_.call.format(folder, newest)} (pip "
                f"install {format_.package}). Files of which it has deleted single rows can't be read"
            )


def _current_files(name: str, folder: str, newest: str) -> set[str]:
    """The files of which all rows count."""
    if name == "Delta":
        import deltalake

        table = deltalake.DeltaTable(folder)
        vectors = "deletionVectors" in (table.protocol().reader_features or ())
        partial = [file for batch in table.deletion_vectors() for file in batch["filepath"]] if vectors else []
        return set(map(_plain, table.file_uris())) - {_plain(str(file)) for file in partial}
    if name == "Iceberg":
        from pyiceberg.table import StaticTable

        tasks = StaticTable.from_metadata(newest).scan().plan_files()
        return {_plain(task.file.file_path) for task in tasks if not task.delete_files}
    return set()


def _tables(places: Sequence[str], files: Files) -> Iterator[tuple[str, str, str]]:
    """The tables at files and folders and above: folder, format, newest file of the log."""
    folders = sorted({place[: match.start()] for place in places for match in re.finditer(r"(?<=[^:/])/|$", place)})
    asked = [(folder, name) for folder in folders if "*" not in folder for name in _FORMATS]
    logs = files.first_names([f"{folder}/{_FORMATS[name].log}/" for folder, name in asked])
    for (folder, name), names in zip(asked, logs, strict=True):
        metadata = [each for each in names if each.endswith(_FORMATS[name].ending)]
        if metadata:
            yield folder, name, f"{folder}/{_FORMATS[name].log}/{max(metadata, key=_number)}"


def _plain(location: str) -> str:
    local = local_path(location)
    return unquote(location).rstrip("/") if local is None else str(local)


def _number(name: str) -> int:
    """The number with which the name of a metadata file begins: `00002-….metadata.json`, `v2.metadata.json`."""
    found = re.match(r"v?(\d+)", name)
    return int(found[1]) if found else -1
