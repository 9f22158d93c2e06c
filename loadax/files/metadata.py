"""Metadata: what opening data asks of remote storage, with the answers, for an index or for other hosts of a run."""

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from loadax.core.threads import thread_pool
from loadax.files.byte_ranges import FileInfo
from loadax.files.opened import PAGE, Opening
from loadax.redaction import redact

if TYPE_CHECKING:
    from loadax.files.remote import RemoteFiles

# Kinds of questions. FILE: size and generation of a file, None if there is none. LIST, LIST_BELOW: what is in a folder,
# and below it. SOME: some names in a folder. All others have contents of files: bytes.
FILE = "file"
LIST = "list"
LIST_BELOW = "list below"
SOME = "some names"

_VERSION = 1
_LARGEST = 1 << 30  # bytes of answers
_LISTS_AT_ONCE = 8
_BYTES = "bytes"  # key of an object of JSON that is bytes

# What a folder has: size and generation of each file by URL, None if unknown; and URLs of subfolders.
Listing = tuple[Mapping[str, FileInfo | None], Sequence[str]]


@final
class Metadata:
    """Answers to questions about remote files, by kind of question and by URL. Not thread-safe while data is opened.

    Questions about URLs with secrets are asked anew each time, so that no answer has them.

    Args:
        answers: Known answers.
        complete: Called once, when all that opening asks is known.
        is_current: Whether the answers are of this run, so that the files need not be compared with them.
        requests: Requests of the opening.
    """

    def __init__(
        self,
        answers: dict[str, dict[str, Any]] | None = None,
        complete: Callable[["Metadata"], object] = lambda _: None,
        *,
        is_current: bool = False,
        requests: Opening | None = None,
    ):
        self._answers = answers or {}
        self._complete = complete
        self.is_open = True
        self.is_current = is_current
        self.is_new = False  # whether it has answers that were not known at first
        self.requests = requests or Opening()

    @property
    def comparisons(self) -> int:
        """Requests of `compare`."""
        lists = [
            answer
            for kind in (LIST, LIST_BELOW)
            for answer in self._answers.get(kind, {}).values()
        ]
        listed = {url for files, _ in lists for url, _ in files}
        files = self._answers.get(FILE, {})
        apart = [url for url, info in files.items() if info and url not in listed]
        pages = [
            max(1, -(-(len(files) + len(folders)) // PAGE))
            for files, folders in lists
        ]
        return sum(pages) + len(apart)

    def complete(self) -> None:
        """Ends the questions of opening: later ones are asked, and their answers forgotten."""
        if self.is_open:
            self.is_open = False
            self._complete(self)
            self._answers = {}

    def recall(
        self,
        kind: str,
        urls: Sequence[str],
        ask: Callable[[list[str]], Iterable[Any]],
    ) -> list[Any]:
        """Answers to a question about URLs.

        Args:
            kind: The question.
            urls: What it is asked about.
            ask: Returns the answers that are not known, in order; JSON, or bytes.
        """
        known = self._answers.get(kind, {})
        new = [url for url in dict.fromkeys(urls) if url not in known]
        found = dict(known)
        if new:
            found.update(zip(new, ask(new), strict=True))
        if new and self.is_open:
            self._answers[kind] = {
                url: answer for url, answer in found.items() if redact(url) == url
            }
            self.is_new = True
        return [found[url] for url in urls]

    def kept(self, kind: str, above: str) -> dict[str, Any]:
        """Known answers about URLs that begin with `above`."""
        known = self._answers.get(kind, {})
        return {url: known[url] for url in known if url.startswith(above)}

    def forget(self, kind: str, urls: Iterable[str]) -> None:
        """Has a question about URLs asked again."""
        for url in urls:
            self._answers[kind].pop(url, None)
        self.is_new = True

    def compare(self, remote: "RemoteFiles") -> None:
        """Lists the folders and looks up the files again, and forgets what is known of those that have changed."""
        if not self._answers:
            return
        lists = [
            (kind, url)
            for kind in (LIST, LIST_BELOW)
            for url in self._answers.get(kind, {})
        ]
        before = [self._answers[kind][url] for kind, url in lists]
        with thread_pool(_LISTS_AT_ONCE, "loadax-lists") as pool:
            after = list(
                pool.map(lambda one: remote.list(one[1], one[0] == LIST_BELOW), lists)
            )
        answers = list(map(listing_answer, after))
        files = self._answers.get(FILE, {})
        known = {
            **files,
            **{url: info for answer in before for url, info in answer[0]},
        }
        found = {url: info for answer in answers for url, info in answer[0]}
        apart = [url for url, info in files.items() if info and url not in found]
        looked_up = dict(
            zip(apart, map(info_answer, remote.look_up(apart)), strict=True)
        )
        found |= looked_up
        # without a generation, files of the same size may differ
        same = {
            url
            for url, info in known.items()
            if info and info[1] and found.get(url) == info
        }
        if answers == before and same.issuperset(apart):
            return
        self.is_new = True
        for (kind, url), answer in zip(lists, answers, strict=True):
            self._answers[kind][url] = answer
        self._answers[FILE] = {url: info for url, info in looked_up.items() if info}
        self._answers[SOME] = {}
        for kind in self._answers.keys() - _KINDS.keys():
            of_kind = self._answers[kind]
            self._answers[kind] = {
                url: of_kind[url] for url in of_kind if url in same
            }

    def dump(self) -> bytes:
        """The answers as bytes."""
        content = {"version": _VERSION, "answers": self._answers}
        return zlib.compress(json.dumps(content, default=_written).encode())


def load_answers(content: bytes) -> dict[str, dict[str, Any]]:
    """The answers of `Metadata.dump`.

    Raises:
        ValueError: When the bytes are others.
    """
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(content, _LARGEST)
        if not stream.eof:
            raise ValueError("the answers are cut short")
        found = json.loads(text, object_hook=_read)
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"the answers are damaged: {error}") from error
    if not isinstance(found, dict) or found.get("version") != _VERSION:
        raise ValueError(f"the answers are not of version {_VERSION}")
    answers = found.get("answers")
    if not isinstance(answers, dict) or not all(
        isinstance(known, dict)
        and all(map(_KINDS.get(kind, _is_content), known.values()))
        for kind, known in answers.items()
    ):
        raise ValueError("the answers are of other types")
    return answers


def info_answer(info: FileInfo | None) -> Any:
    """Size and generation of a file as JSON; None if there is no such file."""
    return info and list(info)


def listing_answer(listing: Listing) -> Any:
    """A listing as JSON."""
    infos, folders = listing
    files = [[url, info_answer(info)] for url, info in sorted(infos.items())]
    return [files, sorted(folders)]


def answered_listing(answer: Any) -> Listing:
    """The listing that `listing_answer` wrote."""
    files, folders = answer
    return {url: info and FileInfo(*info) for url, info in files}, folders


def _written(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    raise TypeError(f"{type(value)} is not an answer")


def _read(value: dict[str, Any]) -> Any:
    if value.keys() == {_BYTES}:
        return base64.b64decode(value[_BYTES], validate=True)
    return value


def _is_info(value: Any) -> bool:
    if value is None:
        return True
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and type(value[0]) is int and isinstance(value[1], bytes)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_listing(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], list)
        and all(
            isinstance(one, list)
            and len(one) == 2
            and isinstance(one[0], str)
            and _is_info(one[1])
            for one in value[0]
        )
        and _are_names(value[1])
    )


def _is_content(value: Any) -> bool:
    return value is None or isinstance(value, bytes)


_KINDS: dict[str, Callable[[Any], bool]] = {
    FILE: _is_info,
    LIST: _is_listing,
    LIST_BELOW: _is_listing,
    SOME: _are_names,
}
