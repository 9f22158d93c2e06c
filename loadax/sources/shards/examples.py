"""Groups the members of tar files into examples: consecutive members whose names are equal up to their extensions."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import some
from loadax.errors import ArgumentError, SourceError
from loadax.protocols import Integers
from loadax.sources.io.file_index import Scan, check_records
from loadax.sources.io.index_folder import Entry, check_array
from loadax.sources.shards.tar import scan_members

KEY = "__key__"
"""Leaf with the name of an example, without extension."""

_PARTS = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")
_RESERVED = re.compile(r"(?:.*/)?__[^/]*__(?:\.[^/]*)?")


class ShardExamples(NamedTuple):
    """The members of one tar file, by example.

    Args:
        begins: First byte of each member in the file.
        sizes: Size of each member in bytes.
        extensions: Extension of each member, in lower case and without the dot.
        firsts: Index of the first member of each example.
        keys: Name of each example.
    """

    begins: list[int]
    sizes: list[int]
    extensions: list[str]
    firsts: list[int]
    keys: list[str]


def scan_examples(location: str, size: int) -> Scan[ShardExamples]:
    """Finds the examples of one tar file; see `scan_members`.

    Hidden files, files without an extension, and names in double underscores are not part of any example.
    """
    members = yield from scan_members(location, size)
    found = ShardExamples([], [], [], [], [])
    for member in members:
        parts = _PARTS.fullmatch(member.name)
        if parts is None or _RESERVED.fullmatch(member.name):
            continue
        if member.is_link:
            raise SourceError(
                f"{location}: {member.name!r} is a link, without bytes of its own; write the tar file again with "
                "tar --dereference --hard-dereference"
            )
        key, extension = parts[1], parts[2].lower()
        if not found.keys or key != found.keys[-1]:
            found.firsts.append(len(found.begins))
            found.keys.append(key)
        elif extension in found.extensions[found.firsts[-1] :]:
            raise SourceError(
                f"{location}: the example {key!r} has two files with the extension {extension!r}, the second at byte "
                f"{member.begin}; write it again with one name for each example"
            )
        found.begins.append(member.begin)
        found.sizes.append(member.size)
        found.extensions.append(extension)
    return found


def merge_examples(shards: Sequence[ShardExamples]) -> Entry:
    """Merges the examples of all tar files into the arrays of an index."""
    names = sorted({extension for shard in shards for extension in shard.extensions})
    numbers = {name: number for number, name in enumerate(names)}
    before = np.cumsum([0, *(len(shard.begins) for shard in shards)])
    firsts = (np.array(shard.firsts, np.int64) + start for shard, start in zip(shards, before, strict=False))
    keys = [key.encode("utf-8", "surrogateescape") for shard in shards for key in shard.keys]
    arrays: dict[str, NDArray[Any]] = {
        "begins": _joined([shard.begins for shard in shards]),
        "sizes": _joined([shard.sizes for shard in shards]),
        "extensions": _joined([[numbers[name] for name in shard.extensions] for shard in shards]).astype(np.int32),
        "firsts": np.concatenate([*firsts, before[-1:]]),
        "examples": np.array([len(shard.firsts) for shard in shards], np.int64),
        "keys": np.frombuffer(b"".join(keys), np.uint8),
        "key_ends": np.cumsum([len(key) for key in keys], dtype=np.int64),
    }
    return Entry(arrays, {"extensions": names})


def check_examples(entry: Entry, sizes: Integers) -> None:
    """Checks the arrays of an index that was loaded from disk.

    Args:
        entry: Arrays of `merge_examples`.
        sizes: Sizes of the tar files, int64[files].

    Raises:
        ValueError: When they are not what `merge_examples` can return.
    """
    names = entry.facts["extensions"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or names != sorted(set(names)):
        raise ValueError("the extensions are not an ascending list of texts")
    members = len(entry.arrays["begins"])
    examples = sum(check_array(entry, "examples", np.int64, len(sizes), 0, members).tolist())
    firsts = check_array(entry, "firsts", np.int64, examples + 1, 0, members)
    extensions = check_array(entry, "extensions", np.int32, members, 0, len(names) - 1)
    ends = check_array(entry, "key_ends", np.int64, examples, 0)
    keys = check_array(entry, "keys", np.uint8, None)
    if firsts[0] or firsts[-1] != members or (np.diff(firsts) <= 0).any():
        raise ValueError("the first members of the examples don't ascend from 0")
    if (np.diff(ends) < 0).any() or (ends[-1] if examples else 0) != len(keys):
        raise ValueError("the ends of the keys don't ascend to their length")
    owners = np.repeat(np.arange(examples), np.diff(firsts))
    if len(np.unique(owners * len(names) + extensions)) < members:
        raise ValueError("an example has an extension twice")
    counts = np.diff(firsts[np.cumsum([0, *entry.arrays["examples"].tolist()])])
    check_records(Entry({**entry.arrays, "members": counts}, {}), sizes, "members")


class ExampleRanges(NamedTuple):
    """Byte ranges of the examples of tar files, which all have the same columns.

    Args:
        begins: First byte of each column of each example, in the concatenation of all files: int64[examples, columns].
        sizes: Sizes in bytes, int64[examples, columns].
        keys: Bytes of the names of all examples.
        key_ends: End of each name in `keys`, int64[examples].
    """

    begins: Integers
    sizes: Integers
    keys: NDArray[np.uint8]
    key_ends: Integers

    def key(self, row: int) -> str:
        """Name of an example."""
        low = int(self.key_ends[row - 1]) if row else 0
        return bytes(self.keys[low : int(self.key_ends[row])]).decode("utf-8", "surrogateescape")


def select_columns(
    entry: Entry, columns: Sequence[str] | None, locations: Sequence[str], file_begins: Integers
) -> tuple[list[str], ExampleRanges]:
    """Selects columns of an index.

    Args:
        entry: Arrays of `merge_examples`.
        columns: Extensions, and `KEY`; None: all extensions.
        locations: Paths and URLs of the tar files.
        file_begins: First byte of each file in their concatenation.

    Returns:
        Extensions, ascending, and the byte ranges of the examples.

    Raises:
        ArgumentError: When no example has a column.
        SourceError: When there is no example, or one lacks a column that others have; names its file.
    """
    arrays, known = entry.arrays, entry.facts["extensions"]
    count = len(arrays["key_ends"])
    if not count:
        what = "has no examples: files named like 0001.jpg, 0001.cls"
        raise SourceError(f"{some(locations, 1)} {what}; write it again, or pass the files of another folder")
    names = list(known) if columns is None else sorted(name for name in columns if name != KEY)
    if unknown := [name for name in names if name not in known]:
        raise ArgumentError(
            f"columns={columns!r}: no example has {unknown[0]!r}; they have {known}", argument="columns"
        )
    shards = np.repeat(np.arange(len(locations)), arrays["examples"])
    owners = np.repeat(np.arange(count), np.diff(arrays["firsts"]))
    begins = np.empty((count, len(names)), np.int64)
    sizes = np.empty((count, len(names)), np.int64)
    examples = ExampleRanges(begins, sizes, arrays["keys"], arrays["key_ends"])
    for column, name in enumerate(names):
        members = np.flatnonzero(arrays["extensions"] == known.index(name))
        rows = owners[members]
        if len(rows) < count:
            row = int(np.setdiff1d(np.arange(count), rows)[0])
            first = int(arrays["firsts"][row])
            found = np.bincount(arrays["extensions"], minlength=len(known)).tolist()
            complete = [name for name, examples_of in zip(known, found, strict=True) if examples_of == count]
            raise SourceError(
                f"row {row}, {locations[shards[row]]}, byte {arrays['begins'][first]}: the example "
                f"{examples.key(row)!r} has no file with the extension {name!r}, which {len(rows)} of {count} examples "
                f"have; write it again, or pass columns= with extensions that all have: {complete}",
                argument="columns",
            )
        begins[:, column] = arrays["begins"][members] + file_begins[shards]
        sizes[:, column] = arrays["sizes"][members]
    return names, examples


def _joined(parts: Sequence[Sequence[int]]) -> Integers:
    return np.concatenate([np.array(part, np.int64) for part in parts])
