"""One store in the place of another: by renames, or by copying where nothing can be renamed."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import tensorstore as ts

from loadax.sources.io.kvstore import wait

_SWAPS = 8  # tries, where other processes replace the same store
_AT_ONCE = 4  # objects under way


def swap_folders(target: Path, new: Path) -> list[Path]:
    """Renames `new` to `place`, and what stood there to a name beside it, which comes back.

    Mostly one, none when it is gone.

    A process that is killed in between leaves both stores, whole, under names that begin with that of `place` and a
    dot.

    Raises:
        OSError: when it can't be done; `place` is as it was then.
    """
    moved: list[Path] = []
    for attempt in range(_SWAPS):
        old = new.with_suffix(f".{attempt}.old")
        with suppress(FileNotFoundError):  # another process is about to put its own there
            target.rename(old)
            moved.append(old)
        try:
            new.rename(target)
        except OSError:
            if target.exists() and attempt < _SWAPS - 1:
                continue  # another process was faster: its store is whole too, and as good
            if moved and not target.exists():
                moved[-1].rename(target)
            raise
        break
    return moved


def copy_objects(source: ts.KvStore, target: ts.KvStore, keys: Sequence[str], location: str) -> None:
    """Copies what lies under these keys, a few at a time."""
    for start in range(0, len(keys), _AT_ONCE):
        batch = keys[start : start + _AT_ONCE]
        reading = [source.read(key) for key in batch]
        writing = [target.write(key, wait(future, location).value) for key, future in zip(batch, reading, strict=True)]
        for future in writing:
            wait(future, location)
