"""Keeps what opening data asks of remote storage: in an index folder, and once for all processes of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from loadax.core.log import log
from loadax.errors import SourceError
from loadax.files.identity import digest_of
from loadax.files.metadata import Metadata, load_answers
from loadax.files.opened import counted
from loadax.files.remote import RemoteFiles
from loadax.kept.handed_on import RunOpening, next_opening
from loadax.kept.index_folder import Entry, IndexFolder, check_array
from loadax.redaction import redact

# Name of the entry in the index folder, and its array.
ENTRY = "opening"
_ANSWERS = "answers"


@contextmanager
def opening(function: str, paths: Any, index: Any) -> Iterator[Metadata]:
    """A block that opens data, with what is known of its files, which is kept when the block says that it is complete.

    In a run of several processes, process 0 asks, and tells the others.

    Args:
        function: Name of the function of loadax that opens the data.
        paths: What it opens.
        index: Path of the index folder; None: no index.

    Raises:
        ArgumentError: When the index is not the path of a folder.
        SourceError: When the index can't be read.
    """
    if index is None:
        folder = None
    else:
        folder = IndexFolder(index)
    given = list(paths) if isinstance(paths, list | tuple) else [paths]
    identity = {
        "function": function,
        "paths": digest_of([redact(str(path)) for path in given]),
    }
    run = next_opening(digest_of(sorted(identity.items())))
    with counted() as requests:
        if run is not None and not run.is_first:
            content = run.told(partial(_content, folder, identity))
            if content is not None:
                yield Metadata(
                    load_answers(content), is_current=True, requests=requests
                )
                return
            run = None
            folder = None  # process 0 writes it
        metadata = Metadata(
            _answers(folder, identity),
            partial(_keep, folder, identity, run),
            requests=requests,
        )
        try:
            metadata.compare(RemoteFiles())
            yield metadata
            metadata.complete()
        except BaseException:
            if run is not None:
                run.fail()
            raise


def _content(folder: IndexFolder | None, identity: dict[str, Any]) -> bytes | None:
    """The answers in an index; None if it has none, or those of other data."""
    if folder is None:
        return None
    entry = folder.get(ENTRY, identity, lambda entry: load_answers(_bytes(entry)))
    if entry is None:
        return None
    return _bytes(entry)


def _answers(folder: IndexFolder | None, identity: dict[str, Any]) -> Any:
    content = _content(folder, identity)
    if content is None:
        return None
    return load_answers(content)


def _bytes(entry: Entry) -> bytes:
    return check_array(entry, _ANSWERS, np.uint8, None).tobytes()


def _keep(
    folder: IndexFolder | None,
    identity: dict[str, Any],
    run: RunOpening | None,
    metadata: Metadata,
) -> None:
    """Writes the index, if it has other answers, and tells the other processes."""
    if folder is not None:
        metadata.requests.again = metadata.comparisons + metadata.requests.checks
    is_written = folder is not None and metadata.is_new
    if not is_written and run is None:
        return
    content = metadata.dump()
    if is_written:
        assert folder is not None
        entry = Entry({_ANSWERS: np.frombuffer(content, np.uint8)}, {})
        try:
            folder.put(ENTRY, identity, entry)
        except SourceError as error:  # as in a folder of indices that is only read
            log.warning("%s; what opening asks is asked again the next time", error)
    if run is not None:
        run.tell(content)
