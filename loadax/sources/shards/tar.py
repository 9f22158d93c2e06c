"""Finds the members of a tar file: POSIX ustar and pax, GNU long names and large sizes.

Source of the format: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block", and the GNU tar manual,
"Basic Tar Format".
"""

import struct
from collections.abc import Callable, Sequence

import numpy as np

from loadax.core.formatting import count_text
from loadax.errors import SourceError, UnsupportedError
from loadax.files.compression import compression_of
from loadax.sources.file_index import Scan

_BLOCK = 512
_END = bytes(_BLOCK)
# name, size, kind and magic of a header
_HEADER = struct.Struct("100s24x12s20xs100x6s")
_CHECKSUM = slice(148, 156)
# bytes of a long name or of pax records; the longest path of Linux has 4,096
_LONGEST = 1 << 20
_REGULAR = (b"0", b"\0", b"7")
_LINK = (b"1", b"2")
_ZEROS = 1 << 20  # bytes that are looked through at a time
_BATCH = 4096  # headers that are checked at a time
_COMMANDS = {"gzip": "gunzip", "zstd": "unzstd", "bz2": "bunzip2", "xz": "unxz"}

# A regular file in a tar file: its name, first byte and size of its content, False; or a link: True.
Member = tuple[bytes, int, int, bool]


def scan_members(
    location: str, size: int, take: Callable[[list[Member]], object]
) -> Scan[None]:
    """Finds the regular files and the links in a tar file.

    Args:
        location: Path or URL, for messages.
        size: Size of the tar file in bytes.
        take: Is called with the next members, whose headers are checked; never with all of a large file.

    Raises:
        SourceError: When it is not a tar file, compressed, cut short, or damaged; names it and the byte.
        UnsupportedError: When a member is sparse.
    """
    at = 0
    needed = _BLOCK
    last = list[Member]()
    extended = dict[bytes, bytes]()

    def follow(
        view: memoryview, first: int, headers: list[int], members: list[Member]
    ) -> tuple[int, int]:
        """Goes from one header to the next, without their checksums, in the bytes `view` from byte `first` on.

        Adds the place of each header in `view`, and the members. Returns the byte of the header to go on with, and the
        number of bytes that it takes from there; 0: the end is marked there.
        """
        at = first
        while len(headers) < _BATCH:
            place = at - first
            if place + _BLOCK > len(view):
                if first + len(view) < size:
                    break
                raise SourceError(
                    f"{location}: the tar file is cut short at byte "
                    f"{size}{_after(members)}, where its end is not marked; copy it "
                    "again, or write it again and close it"
                )
            field, digits, kind, magic = _HEADER.unpack_from(view, place)
            if not digits[0] and view[place : place + _BLOCK] == _END:
                return at, 0
            headers.append(place)
            begin = at + _BLOCK
            length = _size(extended.get(b"size", b""), digits, location, at)
            if kind == b"S" or (
                extended and any(key.startswith(b"GNU.sparse") for key in extended)
            ):
                raise UnsupportedError(
                    f"{location}: the member at byte {at} is a sparse file; write "
                    "the tar file again without --sparse"
                )
            name = extended.get(b"path") or _name(view, place, field, magic)
            if begin + length > size:
                raise SourceError(
                    f"{location}: the tar file is cut short at byte {size}, in "
                    f"member {decoded(name)!r}, which takes bytes {begin} to "
                    f"{begin + length - 1}; copy it again"
                )
            if kind in _REGULAR or kind in _LINK:
                members.append((name, begin, length, kind in _LINK))
            elif kind in (b"L", b"x"):
                if length > _LONGEST:
                    what = "the name of a member, or what is said about it,"
                    raise _damaged(
                        location,
                        at,
                        f"{what} takes {count_text(length, 'byte')}, and {_LONGEST} "
                        "is the most",
                    )
                content = bytes(view[place + _BLOCK : place + _BLOCK + length])
                if len(content) < length:
                    return at, _BLOCK + length
                extended.update(
                    _records(content, location, begin)
                    if kind == b"x"
                    else {b"path": _text(content)}
                )
            if kind not in (b"L", b"x", b"K", b"g"):
                extended.clear()
            at = begin + -(-length // _BLOCK) * _BLOCK
        return at, _BLOCK

    while True:
        view = yield at, at + needed
        begin = at
        if not begin and (codec := compression_of(bytes(view[:_BLOCK]))):
            raise SourceError(
                f"{location} is compressed by {codec}, so that no member can be read "
                f"without those before it; decompress it: {_COMMANDS[codec]} "
                f"{location}"
            )
        headers = list[int]()
        members = [*last]
        try:
            at, needed = follow(view, begin, headers, members)
        finally:  # a wrong header explains what was made of it
            _check(view, begin, headers, members, location)
        take(members[len(last) :])
        last = members[-1:]
        if not needed:
            # Another tar file may follow, joined by `cat`.
            at = yield from _end_of_zeros(at, size)
            needed = _BLOCK
            extended.clear()
            if at == size:
                return


def _end_of_zeros(at: int, size: int) -> Scan[int]:
    """The first block from byte `at` on that is not all zeros; the end of the file if there is none."""
    while at < size:
        window = bytes((yield at, at + _ZEROS)[:_ZEROS])
        rest = window.lstrip(b"\0")
        if rest:
            return at + (len(window) - len(rest)) // _BLOCK * _BLOCK
        at += len(window)
    return size


def _check(
    view: memoryview,
    first: int,
    places: list[int],
    members: Sequence[Member],
    location: str,
) -> None:
    """Checks the checksums of headers at these places in `view`, which begins at byte `first` of the file."""
    blocks = np.frombuffer(view, np.uint8, len(view) // _BLOCK * _BLOCK).reshape(
        -1, _BLOCK
    )
    headers = blocks[np.array(places, np.int64) // _BLOCK]
    # The checksum counts its own field as spaces.
    totals = (
        headers.sum(axis=1, dtype=np.uint32)
        - headers[:, _CHECKSUM].sum(axis=1, dtype=np.uint32)
        + 8 * ord(" ")
    )
    # Most writers store six octal digits, NUL and space.
    digits = headers[:, 148:154] - ord("0")
    right = (digits < 8).all(axis=1) & (
        digits @ (8 ** np.arange(5, -1, -1)) == totals
    )
    right &= (headers[:, 154] == 0) & (headers[:, 155] == ord(" "))
    for index in np.flatnonzero(~right).tolist():
        header = headers[index].tobytes()
        at = first + places[index]
        stored = header[_CHECKSUM].strip(b"\0 ")
        if (
            stored.isdigit()
            and int(stored, 8 if not set(stored) & set(b"89") else 10)
            == totals[index]
        ):
            continue
        if at:
            after = _after([member for member in members if member[1] <= at])
            raise _damaged(
                location, at, f"the checksum of the header{after} is wrong"
            ) from None
        raise SourceError(
            f"{location} is not a tar file: it begins with {header[:8]!r}"
        ) from None


def _after(members: Sequence[Member]) -> str:
    if members:
        return f" after {decoded(members[-1][0])!r}"
    return ""


def _damaged(location: str, at: int, what: str) -> SourceError:
    return SourceError(
        f"{location}: the tar file is damaged at byte {at}: {what}; copy it again, "
        "or write it again"
    )


def _size(stated: bytes, field: bytes, location: str, at: int) -> int:
    """Size of a member: decimal, by the pax records before it; else octal in its header, or GNU's bytes after 0x80."""
    if not stated and field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if stated:
        digits, base = (stated, 10)
    else:
        digits, base = (field.strip(b"\0 "), 8)
    # int() would take "-1" and "1_0" too
    if len(digits) > 20 or digits.strip(b"0123456789"[:base]):
        raise _damaged(location, at, f"a size is {digits[:60]!r}")
    return int(digits or b"0", base)


def _name(view: memoryview, place: int, field: bytes, magic: bytes) -> bytes:
    if magic == b"ustar\0" and view[place + 345]:
        return _text(bytes(view[place + 345 : place + 500])) + b"/" + _text(field)
    return _text(field)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def decoded(name: bytes) -> str:
    """Name of a member as text; bytes that are not UTF-8 become surrogates."""
    return name.decode("utf-8", "surrogateescape")


def _records(content: bytes, location: str, begin: int) -> dict[bytes, bytes]:
    """Records of a pax header: "length key=value" and a newline each."""
    found = dict[bytes, bytes]()
    at = 0
    while at < len(content):
        digits = content[at : at + 20].partition(b" ")[0]
        if digits.isdigit():
            length = int(digits)
        else:
            length = 0
        key, equals, value = content[
            at + len(digits) + 1 : at + length - 1
        ].partition(b"=")
        if not equals or length <= len(digits) or at + length > len(content):
            raise _damaged(
                location, begin + at, "a record of a pax header has another length"
            )
        found[key] = value
        at += length
    return found
