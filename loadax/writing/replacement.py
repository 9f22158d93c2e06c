"""Replaces one store by another: by renames, or by copying on object stores."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import tensorstore as ts

from loadax.sources.io.kvstore import wait

_SWAPS = 8  # tries, in case other processes replace the same store
_AT_ONCE = 4  # objects copied concurrently


def swap_folders(target: Path, new: Path) -> list[Path]:
    """Renames `target` to a name next to it and `new` to `target`; returns the new paths of the old folders.

    Usually one; none if `target` was gone. A process that is killed in between leaves both stores complete, under
    names that begin with a dot and the name of `target`.

    Raises:
        OSError: When a rename fails; `target` is then unchanged.
    """
    moved: list[Path] = []
    for attempt in range(_SWAPS):
        old = new.with_suffix(f".{attempt}.old")
        with suppress(FileNotFoundError):  # another process is replacing it
            target.rename(old)
            moved.append(old)
        try:
            new.rename(target)
        except OSError:
            if target.exists() and attempt < _SWAPS - 1:
                continue  # another process was faster: its store is complete too
            if moved and not target.exists():
                moved[-1].rename(target)
            raise
        break
    return moved


def copy_objects(source: ts.KvStore, target: ts.KvStore, keys: Sequence[str], location: str) -> None:
    """Copies the objects with these keys, a few at a time."""
    for start in range(0, len(keys), _AT_ONCE):
        batch = keys[start : start + _AT_ONCE]
        reading = [source.read(key) for key in batch]
        writing = [target.write(key, wait(future, location).value) for key, future in zip(batch, reading, strict=True)]
        for future in writing:
            wait(future, location)
