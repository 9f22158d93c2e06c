"""Opens files of one format. The records of all others are only looked at where files may have another one."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadax.errors import LoadaxError, SourceError, StorageError
from loadax.files.magic import is_magic
from loadax.files.paths import local_path
from loadax.sources.format import Format
from loadax.sources.library import require

_HEAD = 4096  # bytes of a file that are looked at


def open_files(
    one: Format, paths: Any, *arguments: Any, index: Any = None, **named: Any
) -> Any:
    """The source of files that a function of loadax opens.

    Args:
        one: Record of their format.
        paths: What it opens.
        arguments: Further arguments of the format's opener.
        index: Folder that keeps what opening asks of remote storage; None: only the processes of a run share that.
        named: Further arguments, by name.

    Raises:
        SourceError: When the files can't be opened. If the first one is local and has another format, names the call
            that opens it.
        UnsupportedError: When a package that reads them is not installed.
    """
    require(one.noun, one.requires, one.extra)
    if one.any_bytes:
        first = _first_file(paths)
    else:
        first = None
    if first is not None and is_magic(first[1]):
        from loadax.sources.formats import refuse_other

        refuse_other(one, *first)
    try:
        if not one.metadata or (index is None and "://" not in str(paths)):
            return one.open(paths, *arguments, **named)
        from loadax.files.opened import note_opening
        from loadax.kept.opening import opening

        with opening(one.function, paths, index) as metadata:
            source = one.open(paths, *arguments, metadata=metadata, **named)
        note_opening(source.addresses, metadata.requests)
    except StorageError:  # the file could not be read at all
        raise
    except SourceError as error:
        from loadax.sources.formats import refuse_other

        if (first := _first_file(paths)) is not None:
            refuse_other(one, *first, error)
        raise
    return source


def _first_file(paths: Any) -> tuple[Path, bytes] | None:
    """Path and first bytes of the first file; None if it is not a local one."""
    if isinstance(paths, Sequence) and not isinstance(paths, str | bytes) and paths:
        first = paths[0]
    else:
        first = paths
    try:
        if isinstance(first, str | os.PathLike):
            path = local_path(first)
        else:
            path = None
        if path is None or not path.is_file():
            return None
        with path.open("rb") as file:
            return path, file.read(_HEAD)
    except (LoadaxError, OSError):
        return None
