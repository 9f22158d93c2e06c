"""Named arrays in a folder, kept with what they were made from: written once, and mapped from then on."""

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError
from loadax.sources.io.files import open_regular
from loadax.sources.io.paths import local_path
from loadax.sources.npy.header import NPY_FAILURES
from loadax.writing.comparison import differs

_log = logging.getLogger("loadax")


class Entry(NamedTuple):
    """Arrays by name, and small facts about them (JSON)."""

    arrays: Mapping[str, NDArray[Any]]
    facts: dict[str, Any]


@final
class ArrayFolder:
    """A folder of entries. Processes that share it may write at once: they write the same.

    Arrays are files of their own, called by their contents, so that nobody's mapped file is ever written to; what an
    entry consists of stands in a `.json` file, which comes last and replaces the one before in one stroke. Both are
    checked when they are read: an entry whose contents are not what their digests say is as good as none.

    Args:
        path: of the folder, on this machine; made when something is written.

    Raises:
        ArgumentError: when it is no path of a folder.
    """

    def __init__(self, path: Any):
        folder = local_path(path) if isinstance(path, str | os.PathLike) else None
        if folder is None:
            raise ArgumentError(f"index={path!r}: pass the path of a folder on this machine")
        self._folder = folder
        if self._folder.exists() and not self._folder.is_dir():
            raise ArgumentError(
                f"index={os.fspath(path)!r} is a file; pass the path of a folder, which is made when it isn't there"
            )

    def get(self, name: str, identity: Mapping[str, Any]) -> Entry | None:
        """An entry, mapped, when it is there and was made from `identity`.

        Otherwise None, and the log says why if it is there.
        """
        described = self._folder / f"{name}.json"
        if not described.exists():
            return None
        try:
            os.close(open_regular(described))
            found = json.loads(described.read_bytes())
            if found["check"] != _check(found):
                raise ValueError("it is damaged: its contents are not what its digest says")
            others = [
                field
                for field, value in identity.items()
                if differs(found["identity"].get(field), _plain(value), field)
            ]
            if others:
                _log.warning("%s is of other data (%s differs): it is made anew", described, ", ".join(others))
                return None
            arrays = {each: _mapped(self._folder / file) for each, file in found["arrays"].items()}
            for each, file in found["arrays"].items():
                if file != _file(name, each, arrays[each]):
                    raise ValueError(f"{file} is damaged: its contents are not what its digest says")
        except NPY_FAILURES as error:
            _log.warning("%s can't be used (%s): it is made anew", described, error)
            return None
        return Entry(arrays, found["facts"])

    def put(self, name: str, identity: Mapping[str, Any], entry: Entry) -> None:
        """Writes an entry in place of the one that is there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        described = self._folder / f"{name}.json"
        before = self._files_of(described)
        files = {each: _file(name, each, array) for each, array in entry.arrays.items()}
        for each, file in files.items():
            _write(self._folder / file, lambda out, each=each: np.save(out, entry.arrays[each], allow_pickle=False))  # type: ignore[misc]
        content = {"identity": _plain(dict(identity)), "arrays": files, "facts": _plain(entry.facts)}
        text = json.dumps({**content, "check": _check(content)}, indent=1)
        _write(described, lambda out: out.write(text.encode()))
        for file in before - set(files.values()):
            if file.startswith(f"{name}-") and file.endswith(".npy"):
                (self._folder / file).unlink(missing_ok=True)

    def _files_of(self, described: Path) -> set[str]:
        try:
            os.close(open_regular(described))
            return {Path(each).name for each in json.loads(described.read_bytes())["arrays"].values()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return set()


def _mapped(path: Path) -> NDArray[Any]:
    # A plain view: every operation on a memmap pays for its subclass.
    os.close(open_regular(path))  # NumPy would wait for a pipe
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array.view(np.ndarray)


def _file(name: str, each: str, array: NDArray[Any]) -> str:
    """What the file of an entry's array is called: by its contents, so that they can be checked."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return f"{name}-{each}-{digest.hexdigest()[:16]}.npy"


def _check(content: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in content.items() if name != "check"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """A value as it is when it was written as JSON and read again."""
    return json.loads(json.dumps(value))


def _write(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Writes a file that is there whole or not at all."""
    # Not by `tempfile`, whose files nobody else may read.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
