"""Opens files of one format. The records of all others are only looked at where files may have another one."""

from typing import Any

from loadax.errors import SourceError, StorageError
from loadax.sources.format import Format
from loadax.sources.library import require


def open_files(one: Format, paths: Any, *arguments: Any, **named: Any) -> Any:
    """The source of files that a function of loadax opens.

    Args:
        one: Record of their format.
        paths: What it opens.
        arguments: Further arguments of the format's opener.
        named: Further arguments, by name.

    Raises:
        SourceError: When the files can't be opened. If the first one is local and has another format, names the call
            that opens it.
        UnsupportedError: When a package that reads them is not installed.
    """
    require(one.noun, one.requires, one.extra)
    if one.any_bytes:
        from loadax.sources.formats import refuse_other

        refuse_other(one, paths)
    try:
        return one.open(paths, *arguments, **named)
    except StorageError:  # the file could not be read at all
        raise
    except SourceError as error:
        from loadax.sources.formats import refuse_other

        refuse_other(one, paths, error)
        raise
