"""Tells the files of a zarr store from others in its folder."""

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from loadax.sources.zarr.format import MARKERS

_METADATA = {*MARKERS, ".zattrs"}
_CHUNK = re.compile(r"c|(c[./])?\d+([./]\d+)*")
_MARKER = re.compile(
    r"loadax\.((part-\d+-of-\d+\.|partial\.)?json|part-\d+-of-\d+\.rows)"
)
# Folder of finished parts in a local store.
KEPT_PARTS = "loadax.parts"

# suffix of TensorStore's lock files, which remain if the process is killed
_LOCK = ".__lock"


def keys_below(folder: Path) -> list[str]:
    """Keys of the files in a folder and below; links count as files and are not followed."""
    keys = []
    for parent, folders, names in os.walk(folder):
        links = [
            name
            for name in folders
            if os.path.islink(os.path.join(parent, name))  # noqa: PTH114, PTH118
        ]
        below = os.path.relpath(parent, folder)
        keys += [
            name if below == "." else f"{below}/{name}" for name in (*names, *links)
        ]
    return keys


def own_keys(keys: Collection[str], arrays: Iterable[str] | None = None) -> list[str]:
    """Returns the keys (paths below a store) that are metadata, chunks or markers of loadax, in the order of `keys`.

    Args:
        keys: All keys below the store.
        arrays: Names of its arrays from the manifest; None: every zarr array and group below belongs to the store.
    """
    split = {key: key.removesuffix(_LOCK).rpartition("/") for key in keys}
    if arrays is None:
        nodes = {folder for folder, _, file in split.values() if file in _METADATA}
    else:
        nodes = set(arrays)

    def is_own(folder: str, slash: str, file: str) -> bool:
        if file in _METADATA and (not folder or folder in nodes):
            return True
        if folder == KEPT_PARTS or (not folder and _MARKER.fullmatch(file)):
            return True
        parts = f"{folder}{slash}{file}".split("/")
        return any(
            "/".join(parts[:cut]) in nodes and _CHUNK.fullmatch("/".join(parts[cut:]))
            for cut in range(len(parts))
        )

    return [key for key, parts in split.items() if is_own(*parts)]
