"""IndexFolder: on-disk cache of arrays computed from data, with the identity of the data.

Used by `filter`, `split_by` and `pack`, and by sources whose files have no index of their own.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.core.former import former
from loadax.core.log import log
from loadax.core.memory import machine_memory
from loadax.errors import ArgumentError, SourceError
from loadax.files.kept_files import map_kept, read_kept, stamp_of, sweep, whole_file
from loadax.files.npy_header import NPY_FAILURES, parse_npy
from loadax.files.paths import local_folder

# Field of an identity that is None in a run of several processes, since each may have its own copy of the data.
FILES = "files"

# Field of an identity that stores of earlier versions lack.
INNER = "inner functions"

_VERSION = 3
_LONGEST = 64 << 20  # bytes of a description
_NAME = "loadax index"
_MAGIC = f'{{\n "{_NAME}": '.encode()  # first bytes of a description


class Entry(NamedTuple):
    """Arrays by name, and small metadata (JSON)."""

    arrays: Mapping[str, NDArray[Any]]
    facts: dict[str, Any]


@final
class IndexFolder:
    """A folder of entries. Processes may write the same entry concurrently, because they write the same contents.

    Each array is a file named by its content hash, so a file that is read is never overwritten. The `.json` description
    of an entry is written last and replaced atomically. Both are verified on every read: an entry with a wrong checksum
    counts as missing. Large arrays are mapped, so that the processes of a machine share them.

    Args:
        path: Path of the local folder; created on the first write.

    Raises:
        ArgumentError: When it is not the path of a folder.
    """

    def __init__(self, path: Any):
        folder = local_folder("index", path)
        if folder.exists() and not folder.is_dir():
            raise ArgumentError(
                f"index={os.fspath(path)!r} is a file; pass the path of a folder, "
                "which is created if needed (if the file is the index of an earlier "
                "loadax, delete it)"
            )
        self._folder = folder

    def path(self, name: str) -> Path:
        """Path of an entry's description."""
        return self._folder / f"{name}.json"

    def parts(self, name: str, digest: str) -> Path:
        """Folder of the parts of an entry that is being computed. `digest`: of what it is computed from."""
        return self._folder / f"{name}-{digest}.parts"

    def stamp(self, name: str) -> tuple[int, int] | None:
        """A stamp that changes whenever an entry is written; None if there is none."""
        return stamp_of(self.path(name))

    def get(
        self, name: str, identity: Mapping[str, Any], check: Callable[[Entry], object]
    ) -> Entry | None:
        """Returns an entry if it was computed from `identity`; else None, and logs why if it exists.

        Args:
            name: Name of the entry.
            identity: Identity of the data.
            check: Checks the values of the entry, since anybody can write right checksums; raises `ValueError`, or
                whatever values of a wrong type lead to. See `check_array`.

        Raises:
            ArgumentError: When the file with its name is not an index, and so must not be overwritten.
            SourceError: When it can't be read.
        """
        path = self.path(name)
        described = _read(path)
        if described is None:
            return None
        try:
            content = json.loads(described)
            if content["check"] != _check(content):
                raise ValueError("it is damaged: its checksum is wrong")
            known = {_NAME: content[_NAME], **content["identity"]}
            plain = json.loads(json.dumps({_NAME: _VERSION, **identity}))
            others = [
                field
                for field, value in plain.items()
                if differs(known.get(field), value, field)
            ]
            if others:
                log.warning(
                    "index %s does not match (%s differs) and is not used; "
                    "if several calls share the folder, pass each its own index=",
                    path,
                    ", ".join(others),
                )
                return None
            arrays = {}
            for key, file in content["arrays"].items():
                arrays[key] = parse_npy(
                    map_kept(self._folder / Path(file).name, machine_memory() // 2)
                )
                if file != _file_name(name, key, arrays[key]):
                    raise ValueError(f"{file} is damaged: its checksum is wrong")
            entry = Entry(arrays, content["facts"])
            check(entry)
        except NPY_FAILURES as error:
            log.warning("index %s can't be used: %s", path, error)
            return None
        log.info("index %s: read", path)
        return entry

    def put(self, name: str, identity: Mapping[str, Any], entry: Entry) -> None:
        """Writes an entry, replacing the one with that name.

        Raises:
            SourceError: When it can't be written.
        """
        path = self.path(name)
        files = {
            key: _file_name(name, key, array) for key, array in entry.arrays.items()
        }
        content = {
            _NAME: _VERSION,
            "identity": dict(identity),
            "arrays": files,
            "facts": entry.facts,
        }
        text = json.dumps({**content, "check": _check(content)}, indent=1)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            sweep(self._folder)
            try:
                for key, file in files.items():
                    with whole_file(self._folder / file) as out:
                        np.save(out, entry.arrays[key], allow_pickle=False)
                with whole_file(path) as out:
                    out.write(text.encode())
            finally:  # also after a full disk: no array stays without a description
                self._delete_others(name, entry.arrays)
        except OSError as error:
            raise SourceError(
                f"index {path} can't be written: {error}; pass another path, or free "
                "space"
            ) from error
        log.info("index %s: written", path)

    def _delete_others(self, name: str, keys: Iterable[str]) -> None:
        """Deletes arrays of an entry that its description does not name, such as those of the entry before it."""
        try:
            named = set(json.loads(_read(self.path(name)) or "")["arrays"].values())
        except NPY_FAILURES:
            named = set()
        one = re.compile(
            rf"{re.escape(name)}-({'|'.join(map(re.escape, keys))})-[0-9a-f]{{16}}\.npy"
        )
        for file in os.listdir(self._folder):  # noqa: PTH208
            if one.fullmatch(file) and file not in named:
                (self._folder / file).unlink(missing_ok=True)


def cached(
    folder: IndexFolder | None,
    name: str,
    identity: Callable[[], Mapping[str, Any]],
    check: Callable[[Entry], object],
    make: Callable[[], Entry],
) -> Entry:
    """Returns an entry of a folder, or makes it and writes it there; see `IndexFolder`. None: makes it."""
    if folder is None:
        return make()
    known = identity()
    entry = folder.get(name, known, check)
    if entry is None:
        entry = make()
        folder.put(name, known, entry)
    return entry


def check_array(
    entry: Entry,
    name: str,
    dtype: Any,
    length: int | None,
    low: int | None = None,
    high: int | None = None,
) -> NDArray[Any]:
    """Returns an array of an entry, if it is flat, of this dtype and length, and its values are within limits.

    Raises:
        ValueError: If it is not; names it.
    """
    array = entry.arrays[name]
    if array.ndim != 1 or array.dtype != dtype:
        raise ValueError(
            f"{name} is {array.dtype}{list(array.shape)}, not a flat array of "
            f"{np.dtype(dtype)}"
        )
    if length is not None and len(array) != length:
        raise ValueError(
            f"{name} has {count_text(len(array), 'value')}, not {length}"
        )
    if len(array) and (
        (low is not None and array.min() < low)
        or (high is not None and array.max() > high)
    ):
        raise ValueError(
            f"{name} has values from {array.min()} to {array.max()}, not from {low} "
            f"to {high}"
        )
    return array


def check_digest(entry: Entry, name: str, *wanted: Any) -> NDArray[Any]:
    """Same as `check_array`, and checks that the digest in the facts is that of the array."""
    array = check_array(entry, name, *wanted)
    if entry.facts["digest"] != digest_values(array):
        raise ValueError(f"the digest is not that of {name}")
    return array


def differs(known: Any, asked: Any, field: str) -> bool:
    """Whether a field of two identities differs; `FILES` and `INNER` are compared only if both are known.

    What loadax 0.1.0 has kept is compared by its own fingerprints of functions.
    """
    if field in (FILES, INNER) and (known is None or asked is None):
        return False
    return bool(known != asked and known != former(asked))


def _read(path: Path) -> bytes | None:
    try:
        content = read_kept(path, _LONGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(
            f"index {path} can't be read: {error}; pass another path"
        ) from error
    if not content.startswith(_MAGIC):
        raise ArgumentError(
            f"index {path} is not a loadax index; pass another path, or delete it"
        )
    return content


def _file_name(name: str, key: str, array: NDArray[Any]) -> str:
    """File name of an entry's array, which includes its content hash."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return f"{name}-{key}-{digest.hexdigest()[:16]}.npy"


def _check(content: Mapping[str, Any]) -> str:
    text = json.dumps(
        {name: value for name, value in content.items() if name != "check"},
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]
