"""Index files: one line of JSON that says what the array was computed from, then the array, memory-mapped.

A file is written to its end under another name and then renamed, so that whoever finds it finds all of it. The line
holds digests of itself and of the array, which are compared when the file is opened: a damaged file is as good as none.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.errors import ArgumentError, SourceError
from loadax.sources.io.files import open_regular
from loadax.writing.comparison import differs

_VERSION = 2
_MAGIC = b'{"loadax index": '
_ALIGNMENT = 64
_LONGEST = 1 << 20  # bytes of the first line

DAMAGED = "damage"
"""What `Loaded.differs` says of a file whose contents are not what its digests say."""

Identity = Mapping[str, Any]
"""What an array was computed from, as JSON."""


class Loaded(NamedTuple):
    """What was found at a path.

    Args:
        values: the array; None when it is not the one that was asked for.
        digest: of the array.
        differs: what is not as it was asked for, or `DAMAGED`; None when nothing is there.
    """

    values: NDArray[Any] | None
    digest: str
    differs: str | None


def digest_of(values: NDArray[Any]) -> str:
    """A hash of an array's values."""
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()[:16]


def save(path: Path, identity: Identity, values: NDArray[Any]) -> str:
    """Writes the array with its identity, in one stroke; gives the array's digest.

    Raises:
        SourceError: when the file can't be written.
    """
    digest = digest_of(values)
    header = {"loadax index": _VERSION, **identity, "digest": digest, "dtype": values.dtype.str, "count": len(values)}
    header["check"] = _check(header)
    line = json.dumps(header).encode()
    line += b" " * (-(len(line) + 1) % _ALIGNMENT) + b"\n"
    scratch = path.with_name(f"{path.name}.{secrets.token_hex(4)}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with scratch.open("wb") as file:
                file.write(line)
                file.write(np.ascontiguousarray(values).data)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise SourceError(f"index {path} can't be written: {error}; choose another path, or make room") from error
    return digest


def load(path: Path, identity: Identity) -> Loaded:
    """The array at a path, when it was computed from the same.

    Raises:
        ArgumentError: when the file there is of another kind, so that nobody's data is overwritten.
        SourceError: when it can't be read.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            line = file.readline(_LONGEST)
            size = os.fstat(file.fileno()).st_size
            if not line.startswith(_MAGIC):
                raise ArgumentError(f"index {path} is a file of another kind; choose another path, or delete it")
            header = _parse(line)
            asked = json.loads(json.dumps({"loadax index": _VERSION, **identity}))
            if not header or (header.get("loadax index") == _VERSION and header.get("check") != _check(header)):
                return Loaded(None, "", DAMAGED)
            for name, value in asked.items():
                if differs(header.get(name), value, name):
                    return Loaded(None, "", name)
            dtype, count = np.dtype(header["dtype"]), int(header["count"])
            if size != len(line) + count * dtype.itemsize:
                return Loaded(None, "", DAMAGED)
            values = np.memmap(file, dtype, "r", len(line), (count,)) if count else np.empty(0, dtype)
            if digest_of(values) != header["digest"]:
                return Loaded(None, "", DAMAGED)
            return Loaded(np.asarray(values), str(header["digest"]), None)
    except FileNotFoundError:
        return Loaded(None, "", None)
    except OSError as error:
        raise SourceError(f"index {path} can't be read: {error}; choose another path") from error


def _parse(line: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, RecursionError):  # cut short, or damaged
        return {}


def _check(header: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in header.items() if name != "check"}, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
