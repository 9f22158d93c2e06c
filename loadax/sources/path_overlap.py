"""Tests whether two paths overlap: resolves links and `..`, compares device and inode."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from loadax.core.arguments import path as checked_path
from loadax.errors import ArgumentError
from loadax.files.paths import local_path
from loadax.sources.base import BaseSource, walk

_Identity = tuple[int, int] | None  # device and inode


def check_elsewhere(source: BaseSource, path: str | os.PathLike[str]) -> None:
    """Checks that a path to write to does not overlap any path that a source reads.

    Raises:
        ArgumentError: When they are equal, or one contains the other; names both.
    """
    target = checked_path("path", path, "a path or URL")
    identity_of = cache(_identity)
    for address in dict.fromkeys(
        address for part in walk(source) for address in part.addresses
    ):
        if _overlap(address, target, identity_of):
            raise ArgumentError(
                f"{target} overlaps {address}, which this dataset reads; choose "
                "another path to write to"
            )


def _overlap(
    first: str, second: str, identity_of: Callable[[str], _Identity]
) -> bool:
    base, _, rest = first.partition("|")
    other, _, other_rest = second.partition("|")
    first_path = local_path(base)
    second_path = local_path(other)
    if (first_path is None) != (second_path is None):
        return False
    if first_path is not None and second_path is not None:
        meet = _within(first_path, second_path, identity_of) or _within(
            second_path, first_path, identity_of
        )
    else:
        meet = _begins(base, other) or _begins(other, base)
    # Two arrays of one database do not overlap.
    return meet and (
        not rest
        or not other_rest
        or _begins(rest, other_rest)
        or _begins(other_rest, rest)
    )


def _within(
    inner: Path, outer: Path, identity_of: Callable[[str], _Identity]
) -> bool:
    """Whether a path is `outer` or inside it: by its resolved name, or by inode (bind mounts)."""
    real = Path(os.path.realpath(inner))
    around = os.path.realpath(outer)
    if real.is_relative_to(around):
        return True
    identity = identity_of(around)
    return identity is not None and any(
        identity_of(str(folder)) == identity for folder in (real, *real.parents)
    )


def _begins(url: str, with_url: str) -> bool:
    return f"{url.rstrip('/')}/".startswith(f"{with_url.rstrip('/')}/")


def _identity(path: str) -> _Identity:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino
