"""Odd keys: keys of objects that obstore can neither list nor read, such as `a//b`, and the listing of the others."""

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from loadax.core.formatting import count_text, some
from loadax.core.log import log
from loadax.errors import SourceError
from loadax.redaction import redact

# What makes a key odd, for messages.
ODD = "an empty, '.' or '..' part between slashes, or a control character"

# Control characters, and surrogates, which stand for bytes that are not UTF-8.
_UNREADABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def is_odd(key: str) -> bool:
    r"""Whether obstore refuses a key. A "/" at the end is that of a folder.

    Examples:
        >>> from loadax.files.odd_keys import is_odd
        >>> [is_odd(key) for key in ("a/b.bin", "a/", "", "a//b", "/a", "a/../b", "a\tb")]
        [False, False, False, True, True, True, True]
    """
    parts = key.removesuffix("/").split("/")
    return key != "" and (
        _UNREADABLE.search(key) is not None
        or any(part in ("", ".", "..") for part in parts)
    )


class Listing(NamedTuple):
    """Contents of a folder in a bucket, by their paths below the folder.

    Args:
        files: Files that can be read.
        folders: Subfolders, without the "/" at their end.
        odd: Keys that can't be read.
    """

    files: Sequence[str]
    folders: Sequence[str]
    odd: Sequence[str]


def list_around(folder: str, below: bool) -> Listing:
    """Lists a folder in a bucket of which some keys are odd.

    TensorStore lists the keys, because obstore lists none if one of them is odd.

    Args:
        folder: URL that ends with "/".
        below: Whether to list the files of its subfolders too, instead of the subfolders.

    Raises:
        SourceError: When the objects of such a bucket can't be listed by TensorStore.
    """
    # Imported here, because importing TensorStore takes time and most buckets have no odd keys.
    import tensorstore as ts

    from loadax.files.kvstore import key_value_spec, new_context, wait

    if urlsplit(folder).scheme not in ("s3", "gs"):
        raise SourceError(
            f"{folder}: an object below it has a key with {ODD}; rename it, or pass "
            "a list of URLs"
        )
    store = wait(
        ts.KvStore.open(key_value_spec(folder), context=new_context(0)), folder
    )
    keys = sorted(
        key.decode(errors="surrogateescape") for key in wait(store.list(), folder)
    )
    files: list[str] = []
    folders: dict[str, None] = {}
    odd: list[str] = []
    for key in keys:
        name, slash, _ = key.partition("/")
        if key.endswith("/") or not key:
            continue  # stands for a folder
        if slash and not below and not is_odd(f"{name}/"):
            folders[name] = None
        elif is_odd(key):
            odd.append(key)
        else:
            files.append(key)
    return Listing(files, list(folders), odd)


def warn_of_odd(folder: str, odd: Sequence[str]) -> None:
    """Logs the keys of a listing that can't be read."""
    if odd:
        text = (
            "%s: left out %s whose key has %s: %s; copy what you need to another key"
        )
        log.warning(
            text,
            redact(folder),
            count_text(len(odd), "object"),
            ODD,
            some(map(repr, odd)),
        )


def check_key(location: str, key: str) -> None:
    """Refuses the URL of an object that obstore can't read.

    Raises:
        SourceError: When the key is odd; shows it.
    """
    if is_odd(key):
        raise SourceError(
            f"{location}: objects whose key has {ODD} can't be read ({key!r}); "
            "correct the URL, or copy the object to another key"
        )
