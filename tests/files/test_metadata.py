"""What is known of remote files is used for those that are as they were, and for no others."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from loadax.files.byte_ranges import FileInfo
from loadax.files.metadata import FILE, LIST, LIST_BELOW, SOME, Metadata, info_answer, listing_answer

LISTED = ["s3://b/a", "s3://b/c"]
BELOW = ["s3://b/deep/d"]
APART = ["s3://b/x"]


class Remote:
    """Files with generations; those that changed have another one, and the same size."""

    def __init__(self, changed: frozenset[str]):
        self.infos = {
            url: FileInfo(3, b"new" if url in changed else b"old") for url in (*LISTED, *BELOW, *APART, "s3://b/unseen")
        }

    def list(self, url: str, below: bool) -> Any:
        assert (url, below) in [("s3://b/", False), ("s3://b/deep/", True)]
        return {each: self.infos[each] for each in (BELOW if below else LISTED)}, ["s3://b/deep/"] * (not below)

    def look_up(self, urls: Any) -> Sequence[FileInfo]:
        assert set(urls) <= set(APART)  # what is listed is not looked up
        return [self.infos[url] for url in urls]


def known_of(remote: Remote) -> dict[str, dict[str, Any]]:
    listings = [(LIST, "s3://b/", False), (LIST_BELOW, "s3://b/deep/", True)]
    return {
        **{kind: {url: listing_answer(remote.list(url, below))} for kind, url, below in listings},
        FILE: {url: info_answer(remote.infos[url]) for url in (LISTED[0], *APART)} | {"s3://b/gone": None},
        SOME: {"s3://b/": ["a"]},
        "footer": {url: url.encode() for url in (*LISTED, *BELOW, *APART, "s3://b/unseen")},
    }


@pytest.mark.parametrize("bits", list(product([False, True], repeat=4)), ids=str)
def test_contents_of_changed_files_are_asked_for_again_and_of_no_others(bits: tuple[bool, ...]) -> None:
    files = [*LISTED, *BELOW, *APART]
    changed = frozenset(url for url, bit in zip(files, bits, strict=True) if bit)
    metadata = Metadata(known_of(Remote(frozenset())))
    now = Remote(changed)
    metadata.compare(now)  # type: ignore[arg-type]
    assert metadata.is_new == bool(changed)
    asked: list[str] = []

    def ask(urls: list[str]) -> list[Any]:
        asked.extend(urls)
        return [b""] * len(urls)

    metadata.recall("footer", files, ask)
    assert set(asked) == changed
    if changed:
        known = known_of(now)
        assert metadata.kept(LIST, "s3://b/") == known[LIST]
        assert metadata.kept(LIST_BELOW, "s3://b/") == known[LIST_BELOW]
        assert metadata.kept(FILE, "s3://b/") == {url: known[FILE][url] for url in APART}
        assert metadata.kept(SOME, "s3://b/") == {}


@pytest.mark.parametrize("generation", [b"", b"1"])
def test_a_file_without_a_generation_may_have_changed(generation: bytes) -> None:
    info = FileInfo(3, generation)

    class Same:
        def look_up(self, urls: list[str]) -> list[FileInfo]:
            return [info] * len(urls)

    metadata = Metadata({FILE: {"http://h/a": info_answer(info)}, "footer": {"http://h/a": b"end"}})
    metadata.compare(Same())  # type: ignore[arg-type]
    assert metadata.kept("footer", "http://h/") == ({"http://h/a": b"end"} if generation else {})
