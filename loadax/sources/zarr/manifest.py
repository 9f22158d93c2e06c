"""Manifest of a store written by loadax: written last, so that its presence means the store is complete.

A half-written zarr store opens like any other, so the format alone does not tell whether a store is complete.
`loadax.partial.json` is written before the first array, `loadax.json` after the last; both describe the contents.
"""

import json
from collections.abc import Mapping
from typing import Any

import tensorstore as ts

from loadax.core.formatting import type_text
from loadax.errors import SourceError
from loadax.files.kvstore import wait
from loadax.sources.zarr.names import FINISHED, PARTIAL, RAGGED, VERSION


def check_finished(
    markers: Mapping[str, bytes | None], location: str
) -> dict[str, Any] | None:
    """Returns the manifest of a finished store; None for a store of another writer.

    Args:
        markers: Contents of the markers in the array's or group's folder, by name; None or absent: there is none.
        location: Path or URL of the folder, for messages.

    Raises:
        SourceError: When the store is unfinished, or was written by a newer loadax.
    """
    finished = markers.get(FINISHED)
    if finished is not None:
        manifest = json_object(finished, f"{location}: {FINISHED}")
        if manifest.get("version") not in (VERSION, RAGGED):
            raise SourceError(
                f"{location}: {FINISHED} has version {manifest.get('version')!r}, "
                f"and this loadax reads {VERSION} and {RAGGED}; read the store with "
                "the loadax version that wrote it"
            )
        return manifest
    partial = markers.get(PARTIAL)
    if partial is None:
        return None
    json_object(partial, f"{location}: {PARTIAL}")
    raise SourceError(
        f"{location}: the store is unfinished ({FINISHED} is missing); resume with "
        "`loadax convert … --resume` or write_zarr(..., resume=True), or delete it"
    )


def read_marker(store: ts.KvStore, name: str, location: str) -> dict[str, Any] | None:
    """Reads the marker file `name`; None if it does not exist.

    Raises:
        SourceError: When it can't be read, or is not a JSON object.
    """
    answer = wait(store.read(name), f"{location}: {name}")
    if answer.state != "value":
        return None
    return json_object(answer.value, f"{location}: {name}")


def json_object(content: bytes, name: str) -> dict[str, Any]:
    """Parses a small file.

    Raises:
        SourceError: When it is not a JSON object; names it.
    """
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{name} is not valid JSON ({error}); was it cut short? Copy it again"
        ) from error
    if not isinstance(parsed, dict):
        raise SourceError(
            f"{name} contains {type_text(parsed)}, not an object; copy it again"
        )
    return parsed
