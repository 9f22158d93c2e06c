"""Groups the members of tar files into examples: consecutive members whose names are equal up to their extensions."""

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import count_text, some
from loadax.errors import ArgumentError, SourceError
from loadax.kept.index_folder import Entry, check_array
from loadax.protocols import Integers
from loadax.sources.file_index import (
    RecordFormat,
    Scan,
    check_records,
    columns_of,
    merged,
)
from loadax.sources.shards.tar import Member, decoded, scan_members

# Leaf with the name of an example, without extension.
KEY = "__key__"

# examples that are checked at a time, so that it takes little memory
TOGETHER = 1 << 13
_RESERVED = re.compile(rb"__[^/]*__(?:\.[^/]*)?")


def scan_examples(location: str, size: int) -> Scan[Entry]:
    """Finds the examples of one tar file; see `scan_members`. No Python object of a member is kept.

    Hidden files, files without an extension, and names in double underscores are not part of any example.
    """
    begins = array("q")
    sizes = array("q")
    firsts = array("q")
    key_ends = array("q")
    extensions = array("i")
    keys = bytearray()
    names = dict[str, int]()
    numbers = dict[bytes, int]()
    last = b""
    problems = list[str]()

    def take(members: list[Member]) -> None:
        nonlocal last
        if problems:
            return
        for name, begin, length, is_link in members:
            folder, slash, file = name.rpartition(b"/")
            stem, _, written = file.partition(b".")
            if (
                not stem
                or not written
                or b"\n" in folder
                or (file[:2] == b"__" and _RESERVED.fullmatch(file))
            ):
                continue
            if (number := numbers.get(written)) is None:
                number = numbers[written] = names.setdefault(
                    decoded(written).lower(), len(names)
                )
            key = folder + slash + stem
            if is_link:
                problems.append(
                    f"{decoded(name)!r} is a link, without bytes of its own; write "
                    "the tar file again with tar --dereference --hard-dereference"
                )
            elif key != last:
                firsts.append(len(begins))
                keys.extend(key)
                key_ends.append(len(keys))
                last = key
            elif number in extensions[firsts[-1] :]:
                problems.append(
                    f"the example {decoded(key)!r} has two files with the extension "
                    f"{decoded(written).lower()!r}, the second at byte {begin}; "
                    "write it again with one name for each example"
                )
            begins.append(begin)
            sizes.append(length)
            extensions.append(number)

    yield from scan_members(location, size, take)
    if problems:  # only now: of a damaged file, the damage is named
        raise SourceError(f"{location}: {problems[0]}")
    firsts.append(len(begins))
    arrays = {
        "begins": begins,
        "sizes": sizes,
        "extensions": extensions,
        "firsts": firsts,
        "examples": np.array([len(key_ends)]),
        "keys": keys,
        "key_ends": key_ends,
    }
    return Entry(
        {name: np.asarray(values) for name, values in arrays.items()},
        {"extensions": list(names)},
    )


def merge_examples(entries: Iterable[Entry]) -> Entry:
    """Merges the examples of consecutive tar files, whose arrays it may change."""
    columns, facts = columns_of(entries)
    names = sorted({name for fact in facts for name in fact["extensions"]})
    numbers = {name: number for number, name in enumerate(names)}
    members = keys = 0
    for index, fact in enumerate(facts):
        change = np.array([numbers[name] for name in fact["extensions"]], np.int32)
        columns["extensions"][index] = change[columns["extensions"][index]]
        if members:  # else they are right, and a copy would take memory
            # Arrays of parts are read-only.
            columns["firsts"][index] = columns["firsts"][index] + members
            columns["key_ends"][index] = columns["key_ends"][index] + keys
        members += len(columns["begins"][index])
        keys += len(columns["keys"][index])
    columns["firsts"][:-1] = [firsts[:-1] for firsts in columns["firsts"][:-1]]
    return Entry(
        {name: merged(parts) for name, parts in columns.items()},
        {"extensions": names},
    )


def check_examples(entry: Entry, sizes: Integers) -> None:
    """Checks the arrays of an index that was loaded from disk.

    Args:
        entry: Begin and size of each member, the number of its extension, and its example: the first member of each
            example, followed by the number of members; number of examples of each file; names of all examples, and the
            end of each.
        sizes: Sizes of the tar files, int64[files].

    Raises:
        ValueError: When they are not what `merge_examples` can return.
    """
    names = entry.facts["extensions"]
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or names != sorted(set(names))
    ):
        raise ValueError("the extensions are not an ascending list of texts")
    members = len(entry.arrays["begins"])
    examples = sum(
        check_array(entry, "examples", np.int64, len(sizes), 0, members).tolist()
    )
    firsts = check_array(entry, "firsts", np.int64, examples + 1, 0, members)
    extensions = check_array(
        entry, "extensions", np.int32, members, 0, len(names) - 1
    )
    ends = check_array(entry, "key_ends", np.int64, examples, 0)
    keys = check_array(entry, "keys", np.uint8, None)
    if firsts[0] or firsts[-1] != members or (firsts[1:] <= firsts[:-1]).any():
        raise ValueError("the first members of the examples don't ascend from 0")
    if (ends[1:] < ends[:-1]).any() or (ends[-1] if examples else 0) != len(keys):
        raise ValueError("the ends of the keys don't ascend to their length")
    for low in range(0, examples, TOGETHER):
        begins = firsts[low : low + TOGETHER + 1]
        owners = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
        pairs = owners * len(names) + extensions[begins[0] : begins[-1]]
        if len(np.unique(pairs)) < len(pairs):
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
        if row:
            low = int(self.key_ends[row - 1])
        else:
            low = 0
        return decoded(self.keys[low : int(self.key_ends[row])].tobytes())


def select_columns(
    entry: Entry,
    columns: Sequence[str] | None,
    locations: Sequence[str],
    file_begins: Integers,
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
    arrays = dict(entry.arrays)
    known = entry.facts["extensions"]
    # the caller drops it too, so that arrays are freed as soon as they are not needed
    del entry
    count = len(arrays["key_ends"])
    if not count:
        what = "has no examples: files named like 0001.jpg, 0001.cls"
        raise SourceError(
            f"{some(locations, 1)} {what}; write it again, or pass the files of "
            "another folder"
        )
    if columns is None:
        names = list(known)
    else:
        names = sorted(name for name in columns if name != KEY)
    if unknown := [name for name in names if name not in known]:
        raise ArgumentError(
            f"columns={columns!r}: no example has {unknown[0]!r}; they have {known}"
        )
    begins = np.empty((count, len(names)), np.int64)
    for column, name in enumerate(names):
        # at most one of each example
        members = arrays["extensions"] == known.index(name)
        if np.count_nonzero(members) < count:
            rows = (
                np.searchsorted(arrays["firsts"], np.flatnonzero(members), "right")
                - 1
            )
            row = int(np.setdiff1d(np.arange(count), rows)[0])
            shard = int(np.searchsorted(np.cumsum(arrays["examples"]), row, "right"))
            first = int(arrays["firsts"][row])
            found = np.bincount(arrays["extensions"], minlength=len(known)).tolist()
            complete = [
                name
                for name, examples_of in zip(known, found, strict=True)
                if examples_of == count
            ]
            key = ExampleRanges(
                begins, begins, arrays["keys"], arrays["key_ends"]
            ).key(row)
            raise SourceError(
                f"row {row}, {locations[shard]}, byte {arrays['begins'][first]}: the "
                f"example {key!r} has no file with the extension {name!r}, which "
                f"{len(rows)} of {count_text(count, 'example')} have; write it "
                f"again, or pass columns= with extensions that all have: {complete}",
                argument="columns",
            )
        if len(members) == count:
            begins[:, column] = arrays["begins"]
        else:
            begins[:, column] = arrays["begins"][members]
    del arrays["begins"]
    sizes = np.empty((count, len(names)), np.int64)
    for column, name in enumerate(names):
        members = arrays["extensions"] == known.index(name)
        if len(members) == count:
            sizes[:, column] = arrays["sizes"]
        else:
            sizes[:, column] = arrays["sizes"][members]
    ends = np.cumsum(arrays["examples"]).tolist()
    for file_begin, low, high in zip(
        file_begins.tolist(), [0, *ends], ends, strict=False
    ):
        begins[low:high] += file_begin
    return names, ExampleRanges(begins, sizes, arrays["keys"], arrays["key_ends"])


# The format of tar files.
RECORDS = RecordFormat(
    "from_webdataset", "tar 2", scan_examples, merge_examples, check_examples
)
