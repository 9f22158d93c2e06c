"""RemoteFiles: sizes, listings and byte ranges of files at URLs, all requests of a call concurrently."""

import re
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, final
from urllib.parse import quote, urlsplit

from loadax.core.log import log
from loadax.core.patience import NOTICE, Patience
from loadax.errors import SourceError
from loadax.files.byte_ranges import (
    ByteRange,
    FileInfo,
    joined,
    no_such_file,
    too_short,
)
from loadax.files.hub_listing import first_hub_names, list_hub
from loadax.files.object_stores import PATIENCE, open_object_store, split_url
from loadax.files.odd_keys import check_key, list_around, warn_of_odd
from loadax.files.opened import PAGE, Opening, count_requests, current_opening
from loadax.files.paths import BUCKETS
from loadax.files.requests import Pending, Request, process_requests
from loadax.files.waits import waiting_for_storage
from loadax.files.web_range import read_web_range
from loadax.redaction import redact

_PAST_THE_END = re.compile("status code: 416")
# What obstore says of a web server that answers a range with the whole file, or without the length of its answer.
_WITHOUT_RANGES = re.compile(
    "Range request not supported|Content-Length Header missing"
)


# What is known of a file of which the server has not one byte.
_EMPTY = FileInfo(0, b"")


class Answer(NamedTuple):
    """Answer to a request for a range.

    Args:
        info: Size and generation of the file; None: the range begins behind its end.
        content: Bytes of the range, fewer at the end of the file.
    """

    info: FileInfo | None
    content: bytes


@final
class RemoteFiles:
    """Files at URLs. Thread-safe; pickles without state: another process opens its own connections."""

    def __init__(self) -> None:
        self._stores: dict[str, Any] = {}
        self._warned: set[str] = set()  # servers that send whole files
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return RemoteFiles, ()

    def look_up(self, locations: Sequence[str]) -> list[FileInfo | None]:
        """Finds size and generation of files, with one request each; None for a file that does not exist."""
        infos = _wait(self._begin(self._look_up, locations), locations)
        # No server has a byte of an empty file, so this asks for the file: it may have grown.
        empty = [index for index, info in enumerate(infos) if info is _EMPTY]
        names = [locations[index] for index in empty]
        asked = self._begin(_head, names, known=names)
        for index, info in zip(empty, _wait(asked, names), strict=True):
            infos[index] = info
        return infos

    def begin(
        self,
        ranges: Sequence[ByteRange],
        urgent: bool,
        known: Container[str] = (),
    ) -> Sequence[Pending]:
        """Requests ranges, each with one request, and does not wait.

        Args:
            ranges: Ranges that are not empty, joined already.
            urgent: Whether a reader waits for them: they are sent before all that were requested ahead.
            known: URLs of files that exist for all that is known: if one is missing, it is requested once more.

        Returns:
            The request of each range; its answer is None if the file does not exist.

        Raises:
            SourceError: When the process was forked from one that has read remote files.
        """
        return self._begin(self._get, ranges, urgent, known)

    def wait(
        self, pending: Sequence[Pending], ranges: Sequence[ByteRange]
    ) -> Sequence[Answer | None]:
        """Waits for the answers of `begin`, with log lines during a long wait; hurries what was requested ahead.

        If one fails, or the wait is interrupted, the others are cancelled.
        """
        return _wait(pending, ranges)

    def gap(self, location: str) -> int:
        """Gap in bytes between two ranges of a file up to which they are joined, as measured of its server."""
        return process_requests().gap(split_url(location)[0])

    def read(
        self,
        ranges: Sequence[ByteRange],
        short: bool = False,
        known: Container[str] = (),
    ) -> tuple[list[bytes], dict[str, FileInfo]]:
        """Reads ranges that are not empty, nearby ones of a file by one request.

        Args:
            ranges: Ranges of any files.
            short: Whether a range may exceed its file: then its bytes are fewer.
            known: URLs of files that exist for all that is known: if one is missing, it is requested once more.

        Returns:
            The bytes of each range, and what the answers told about the files.

        Raises:
            SourceError: When a range exceeds its file, or the file does not exist; names it.
        """
        if not ranges:
            return [], {}
        parts = list(joined(ranges, self.gap(ranges[0].location)))
        wholes = [whole for whole, _ in parts]
        answers = _wait(self.begin(wholes, True, known), wholes)
        contents: list[bytes] = [b""] * len(ranges)
        infos: dict[str, FileInfo] = {}
        for (whole, within), answer in zip(parts, answers, strict=True):
            if answer is None:
                raise no_such_file(str(ranges[within[0]]))
            for index in within:
                wanted = ranges[index]
                content = answer.content[
                    wanted.start - whole.start : wanted.stop - whole.start
                ]
                if len(content) < wanted.stop - wanted.start and not short:
                    raise too_short(wanted)
                contents[index] = content
            if answer.info is not None:
                infos[whole.location] = answer.info
        return contents, infos

    def list(
        self, folder: str, below: bool
    ) -> tuple[Mapping[str, FileInfo | None], list[str]]:
        """Lists the files of a folder in a bucket by URL, and the URLs of its subfolders, which end with "/".

        If obstore refuses a key in the folder, the other files are listed without their sizes.

        Args:
            folder: URL that ends with "/".
            below: Whether to list the files of its subfolders too, instead of the subfolders.

        Raises:
            SourceError: When the server can't list files (HTTP can't).
        """
        if urlsplit(folder).scheme in ("http", "https"):
            raise SourceError(
                f"{folder}: this kind of server can't list its files; pass a list of "
                "URLs"
            )
        if urlsplit(folder).scheme == "hf":
            count_requests(1)
            return list_hub(folder, below)
        if below:
            ask = _list_below
        else:
            ask = _list_level
        (listed,) = _wait(self._begin(ask, [folder], known=[folder]), [folder])
        if listed is None:
            prefix = split_url(folder)[1]
            names, folders, odd = list_around(folder, below)
            warn_of_odd(folder, odd)
            files: dict[str, FileInfo | None] = {
                prefix + name: None for name in names
            }
            folders = [prefix + name for name in folders]
        else:
            entries, folders = listed
            files = {entry["path"]: _info(entry) for entry in entries}
            count_requests(max(0, len(files) + len(folders) - 1) // PAGE)
        root = folder.partition("://")[0] + "://" + urlsplit(folder).netloc + "/"
        urls = {root + quote(path): info for path, info in files.items()}
        return urls, [f"{root}{quote(path)}/" for path in folders]

    def first_names(self, folders: Sequence[str]) -> Sequence[Sequence[str]]:
        """Lists up to a thousand names in each folder, with one request each; none where it can't be listed."""
        hub = [folder for folder in folders if urlsplit(folder).scheme == "hf"]
        others = [folder for folder in folders if folder not in hub]
        found = dict(
            zip(
                others,
                _wait(self._begin(self._first_names, others), others),
                strict=True,
            )
        )
        found |= {folder: first_hub_names(folder) for folder in hub}
        return [found[folder] for folder in folders]

    def _first_names(self, place: "_Place", url: str) -> Sequence[str]:
        from obstore.exceptions import BaseError, InvalidPathError

        try:
            for entries in place.store.list(place.key, chunk_size=1000):
                return [entry["path"].rpartition("/")[2] for entry in entries]
        except InvalidPathError:
            listed = list_around(url, below=True)
            return [name.rpartition("/")[2] for name in listed.files[:1000]]
        except (
            BaseError,
            OSError,
        ) as error:  # as where the credentials don't allow it
            log.debug("%s can't be listed: %s", redact(url), redact(str(error)))
        return []

    def _look_up(self, place: "_Place", url: str) -> FileInfo:
        return self._get(place, ByteRange(url, 0, 1)).info or _EMPTY

    def _get(self, place: "_Place", wanted: ByteRange) -> Answer:
        location, start, stop = wanted
        begun = perf_counter()
        try:
            result = place.store.get(place.key, options={"range": (start, stop)})
            first = perf_counter()
            content = bytes(result.bytes())
        except Exception as error:
            if _PAST_THE_END.search(str(error)):
                return Answer(None, b"")
            if urlsplit(location).scheme in BUCKETS or not _WITHOUT_RANGES.search(
                str(error)
            ):
                raise
            return self._get_from_web(location, (start, stop))
        process_requests().measured(
            place.server, first - begun, perf_counter() - begun, len(content)
        )
        if place.opening is not None:
            place.opening.answered(len(content))
        return Answer(_info(result.meta), content)

    def _get_from_web(self, location: str, span: tuple[int, int]) -> Answer:
        """Reads a range from a server whose answers obstore refuses."""
        start, stop = span
        answer = read_web_range(location, start, stop)
        server = split_url(location)[0]
        if answer.is_part_of_sent and server not in self._warned:
            self._warned.add(server)
            text = (
                "%s: the server sends whole files, so each read of a part takes as "
                "long as a whole file"
            )
            log.warning(text, redact(location))
        return Answer(answer.info, answer.content)

    def _begin(
        self,
        send: "Callable[[_Place, Any], Any]",
        items: Sequence[ByteRange] | Sequence[str],
        urgent: bool = True,
        known: Container[str] = (),
    ) -> Sequence[Pending]:
        """Begins a request for each range or URL."""
        if not items:
            return []
        count_requests(len(items))
        opening = current_opening()
        requests = []
        located: dict[str, tuple[Callable[[Any], Any], str, bool]] = {}
        for item in items:
            if isinstance(item, ByteRange):
                location = item.location
                size = item.stop - item.start
            else:
                location = item
                size = 0
            if location not in located:
                place = self._located(location, opening)
                located[location] = (
                    partial(send, place),
                    place.server,
                    location in known,
                )
            ask, server, is_known = located[location]
            requests.append(Request(ask, item, server, size, urgent, is_known))
        return process_requests().begin(requests)

    def _located(self, location: str, opening: Opening | None) -> "_Place":
        """The place of a URL; its store is opened once."""
        url, key = split_url(location)
        check_key(location, key)
        with self._lock:
            if url not in self._stores:
                self._stores[url] = open_object_store(url)
            return _Place(url, self._stores[url], key, opening)


class _Place(NamedTuple):
    """Where a URL is requested: the server and its store, the key, and the opening that asks, if one does."""

    server: str
    store: Any
    key: str
    opening: Opening | None


def _head(place: _Place, _: str) -> FileInfo:
    return _info(place.store.head(place.key))


def _list_below(place: _Place, _: str) -> Any:
    """Entries below a folder; None if obstore refuses one of its keys."""
    from obstore.exceptions import InvalidPathError

    try:
        if place.key:
            return place.store.list(place.key).collect(), []
        level = place.store.list_with_delimiter("")
        if "" in level["common_prefixes"]:
            return None  # a key begins with "/", which obstore drops
        return place.store.list().collect(), []
    except InvalidPathError:
        return None


def _list_level(place: _Place, _: str) -> Any:
    """Entries and subfolders of a folder; None if obstore refuses one of its keys."""
    from obstore.exceptions import InvalidPathError

    try:
        level = place.store.list_with_delimiter(place.key)
    except InvalidPathError:
        return None
    if "" in level["common_prefixes"]:
        return None
    return level["objects"], level["common_prefixes"]


def _info(meta: Any) -> FileInfo:
    generation = meta["e_tag"]
    if not generation:
        changed = meta[
            "last_modified"
        ].timestamp()  # 0 if the server does not send it
        generation = str(changed) if changed else ""
    return FileInfo(meta["size"], generation.encode())


def _wait(pending: Sequence[Pending], asked: Sequence[object]) -> list[Any]:
    """Waits for all answers, with log lines during a long wait; if one fails, the others are cancelled."""
    with waiting_for_storage():
        return _answers(pending, asked)


def _answers(pending: Sequence[Pending], asked: Sequence[object]) -> list[Any]:
    patience = Patience(NOTICE, PATIENCE)
    try:
        while not process_requests().wait(pending, patience.rest):
            silent = [
                name
                for each, name in zip(pending, asked, strict=True)
                if not each.done()
            ]
            patience.check_storage(", ".join(map(str, silent[:1])))
        failed = [each for each in pending if each.exception() is not None]
        return [each.result() for each in failed or pending]
    finally:
        for each in pending:
            each.cancel()
