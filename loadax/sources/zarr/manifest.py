"""The manifest of a store written by loadax: written last, so that its presence means the store is complete.

A zarr store that is written half way opens like any other, so whole and half-written ones must be told apart by
something else. `loadax.partial.json` is written before the first array, `loadax.json` after the last one; both say what
the store holds.
"""

import json
from typing import Any

import tensorstore as ts

from loadax.errors import SourceError
from loadax.sources.io.kvstore import wait

FINISHED = "loadax.json"
PARTIAL = "loadax.partial.json"
VERSION = 1


def check_finished(store: ts.KvStore, location: str) -> dict[str, Any] | None:
    """The manifest of a store that loadax wrote to its end; None for a store that somebody else wrote.

    Args:
        store: the key-value store of the folder with the array or the group.
        location: its path or URL, for messages.

    Raises:
        SourceError: when the store was not written to its end, or a newer loadax wrote it; says what to do.
    """
    manifest = read_marker(store, FINISHED, location)
    if manifest is not None:
        if manifest.get("version") != VERSION:
            raise SourceError(
                f"{location}: {FINISHED} has version {manifest.get('version')!r}, this loadax reads {VERSION}; "
                "read the store with the loadax that wrote it"
            )
        return manifest
    if read_marker(store, PARTIAL, location) is None:
        return None
    raise SourceError(
        f"{location}: it was not written to its end (no {FINISHED}); go on with `loadax convert … --resume` or "
        "write_zarr(..., resume=True), or delete it"
    )


def read_marker(store: ts.KvStore, name: str, location: str) -> dict[str, Any] | None:
    """What the marker file `name` says; None when it is not there.

    Raises:
        SourceError: when it can't be read, or holds something else than a JSON object.
    """
    answer = wait(store.read(name), f"{location}: {name}")
    if answer.state != "value":
        return None
    try:
        content = json.loads(answer.value)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{location}: {name} is no JSON ({error}); was it cut short? Copy it again") from error
    if not isinstance(content, dict):
        raise SourceError(f"{location}: {name} holds a {type(content).__name__}, not an object; copy it again")
    return content
