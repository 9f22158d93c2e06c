"""Finds the members of a tar file: POSIX ustar and pax, GNU long names and large sizes.

Source of the format: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block", and the GNU tar manual,
"Basic Tar Format".
"""

from typing import NamedTuple

from loadax.errors import SourceError, UnsupportedError
from loadax.sources.io.compression import compression_of
from loadax.sources.io.file_index import Scan

_BLOCK = 512
_END = bytes(_BLOCK)
_CHECKSUM = slice(148, 156)
_LONGEST = 1 << 20  # bytes of a long name or of pax records; the longest path of Linux has 4,096
_REGULAR = (b"0", b"\0", b"7")
_LINK = (b"1", b"2")
_ZEROS = 1 << 20  # bytes that are looked through at a time
_COMMANDS = {"gzip": "gunzip", "zstd": "unzstd", "bz2": "bunzip2", "xz": "unxz"}


class Member(NamedTuple):
    """A regular file in a tar file: its name, and the bytes `[begin, begin + size)` of its content; or a link."""

    name: str
    begin: int
    size: int
    is_link: bool = False


def scan_members(location: str, size: int) -> Scan[list[Member]]:
    """Finds the regular files and the links in a tar file.

    Args:
        location: Path or URL, for messages.
        size: Size of the tar file in bytes.

    Raises:
        SourceError: When it is not a tar file, compressed, cut short, or damaged; names it and the byte.
        UnsupportedError: When a member is sparse.
    """
    members: list[Member] = []
    at, extended = 0, dict[str, str]()
    while True:
        header = bytes((yield at, at + _BLOCK))
        if header == _END:
            # Another tar file may follow, joined by `cat`.
            at, extended = (yield from _end_of_zeros(at, size)), {}
            if at == size:
                return members
            continue
        after = f" after {members[-1].name!r}" if members else ""
        if not at and (codec := compression_of(header)):
            raise SourceError(
                f"{location} is compressed by {codec}, so that no member can be read without those before it; "
                f"decompress it: {_COMMANDS[codec]} {location}"
            )
        if len(header) < _BLOCK:
            raise SourceError(
                f"{location}: the tar file is cut short at byte {size}{after}, where its end is not marked; copy it "
                "again, or write it again and close it"
            )
        _check(header, location, at, after)
        kind, begin = header[156:157], at + _BLOCK
        length = _size(extended, header, location, at)
        if kind == b"S" or any(key.startswith("GNU.sparse") for key in extended):
            raise UnsupportedError(
                f"{location}: the member at byte {at} is a sparse file; write the tar file again without --sparse"
            )
        at = begin + -(-length // _BLOCK) * _BLOCK
        if begin + length > size:
            name = extended.get("path") or _name(header)
            raise SourceError(
                f"{location}: the tar file is cut short at byte {size}, in member {name!r}, which takes bytes {begin} "
                f"to {begin + length - 1}; copy it again"
            )
        if kind in (b"L", b"x") and length > _LONGEST:
            what = f"the name of a member, or what is said about it, takes {length} bytes, and {_LONGEST} is the most"
            raise _damaged(location, begin - _BLOCK, what)
        if kind == b"L":
            extended["path"] = _text(bytes((yield begin, begin + length)))
        elif kind == b"x":
            extended.update(_records(bytes((yield begin, begin + length)), location, begin))
        elif kind not in (b"K", b"g"):
            if kind in _REGULAR or kind in _LINK:
                members.append(Member(extended.get("path") or _name(header), begin, length, kind in _LINK))
            extended = {}


def _end_of_zeros(at: int, size: int) -> Scan[int]:
    """The first block from byte `at` on that is not all zeros; the end of the file if there is none."""
    while at < size:
        window = bytes((yield at, at + _ZEROS))
        rest = window.lstrip(b"\0")
        if rest:
            return at + (len(window) - len(rest)) // _BLOCK * _BLOCK
        at += len(window)
    return size


def _check(header: bytes, location: str, at: int, after: str) -> None:
    stored = header[_CHECKSUM].strip(b"\0 ")
    # The checksum counts its own field as spaces.
    total = sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ")
    if stored.isdigit() and int(stored, 8 if not set(stored) & set(b"89") else 10) == total:
        return
    if at:
        raise _damaged(location, at, f"the checksum of the header{after} is wrong")
    raise SourceError(f"{location} is not a tar file: it begins with {header[:8]!r}")


def _damaged(location: str, at: int, what: str) -> SourceError:
    return SourceError(f"{location}: the tar file is damaged at byte {at}: {what}; copy it again, or write it again")


def _size(extended: dict[str, str], header: bytes, location: str, at: int) -> int:
    """Size of a member: decimal, by the pax records before it; else octal in its header, or GNU's bytes after 0x80."""
    stated, field = extended.get("size", "").encode("utf-8", "surrogateescape"), header[124:136]
    if not stated and field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits, base = (stated, 10) if stated else (field.strip(b"\0 "), 8)
    if len(digits) > 20 or set(digits) - set(b"0123456789"[:base]):  # int() would take "-1" and "1_0" too
        raise _damaged(location, at, f"a size is {digits[:60]!r}")
    return int(digits or b"0", base)


def _name(header: bytes) -> str:
    name, prefix = _text(header[:100]), _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _records(content: bytes, location: str, begin: int) -> dict[str, str]:
    """Records of a pax header: "length key=value" and a newline each."""
    found, at = dict[str, str](), 0
    while at < len(content):
        digits = content[at : at + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        key, equals, value = content[at + len(digits) + 1 : at + length - 1].partition(b"=")
        if not equals or length <= len(digits) or at + length > len(content):
            raise _damaged(location, begin + at, "a record of a pax header has another length")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        at += length
    return found
