"""Separates a zarr store's own files from foreign ones, so that only the former are ever deleted."""

import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

_METADATA = {"zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"}
_CHUNK = re.compile(r"c|(c[./])?\d+([./]\d+)*")
_MARKER = re.compile(r"loadax\.(part-\d+-of-\d+\.|partial\.)?json")
_LOCK = ".__lock"  # suffix of TensorStore's lock files, which remain if the process is killed


def foreign_keys(keys: Collection[str], arrays: Iterable[str] | None = None) -> list[str]:
    """Returns the sorted keys (paths below the store) that are not metadata, chunks or markers of loadax.

    Args:
        keys: All keys below the store.
        arrays: Names of its arrays from the manifest; None: every zarr array and group below belongs to the store.
    """
    plain = {key: key.removesuffix(_LOCK) for key in keys}
    nodes = (
        {_parent(name) for name in plain.values() if name.rpartition("/")[2] in _METADATA}
        if arrays is None
        else set(arrays)
    )
    return sorted(key for key, name in plain.items() if not _is_own(name, nodes))


def own_keys(keys: Collection[str], arrays: Iterable[str] | None = None) -> list[str]:
    """Returns the keys that belong to the store, in the order of `keys`."""
    foreign = set(foreign_keys(keys, arrays))
    return [key for key in keys if key not in foreign]


def keys_below(folder: Path) -> list[str]:
    """Keys of the files in a folder and below; links count as files and are not followed."""
    keys = []
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118
        below = os.path.relpath(parent, folder)
        keys += [name if below == "." else f"{below}/{name}" for name in (*names, *links)]
    return keys


def delete_own(folder: Path, keys: Iterable[str]) -> bool:
    """Deletes these files and then empty folders; returns whether the folder is gone."""
    for key in keys:
        (folder / key).unlink(missing_ok=True)
    for parent, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # not empty
            Path(parent).rmdir()
    return not folder.exists()


def _is_own(name: str, nodes: Collection[str]) -> bool:
    folder, _, file = name.rpartition("/")
    if (file in _METADATA and (not folder or folder in nodes)) or (not folder and _MARKER.fullmatch(file)):
        return True
    while True:
        if folder in nodes and _CHUNK.fullmatch(name[len(folder) + 1 :] if folder else name):
            return True
        if not folder:
            return False
        folder = _parent(folder)


def _parent(name: str) -> str:
    return name.rpartition("/")[0]
