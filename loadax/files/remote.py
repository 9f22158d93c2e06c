"""RemoteFiles: sizes, listings and byte ranges of files at URLs, all requests of a call concurrently."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, final
from urllib.parse import quote, urlsplit

from loadax.core.log import log
from loadax.core.patience import NOTICE, Patience
from loadax.errors import SourceError
from loadax.files.attempts import attempt
from loadax.files.byte_ranges import (
    ByteRange,
    FileInfo,
    joined,
    no_such_file,
    too_short,
)
from loadax.files.object_stores import PATIENCE, open_object_store, split_url
from loadax.files.odd_keys import check_key, list_around, warn_of_odd
from loadax.files.paths import BUCKETS
from loadax.files.requests import Request, process_requests
from loadax.files.web_range import read_web_range
from loadax.redaction import redact

_PAST_THE_END = re.compile("status code: 416")
# What obstore says of a web server that answers a range with the whole file, or without the length of its answer.
_WITHOUT_RANGES = re.compile(
    "Range request not supported|Content-Length Header missing"
)


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
        return _wait(self._begin(locations, self._look_up), locations)

    def begin(
        self, ranges: Sequence[ByteRange], urgent: bool
    ) -> Sequence["Future[Answer | None]"]:
        """Requests ranges, each with one request, and does not wait.

        A future that is cancelled before its request was sent frees its place.

        Args:
            ranges: Ranges that are not empty, joined already.
            urgent: Whether a reader waits for them: they are sent before all that were requested ahead.

        Returns:
            A future of each range; its answer is None if the file does not exist.
        """
        return self._begin(ranges, self._read, urgent)

    def wait(
        self, futures: Sequence["Future[Answer | None]"], ranges: Sequence[ByteRange]
    ) -> Sequence[Answer | None]:
        """Waits for the answers of `begin`, with log lines during a long wait; hurries what was requested ahead.

        If one fails, or the wait is interrupted, the others are cancelled.
        """
        process_requests().hurry([future for future in futures if not future.done()])
        return _wait(futures, ranges)

    def read(
        self, ranges: Sequence[ByteRange], short: bool = False
    ) -> tuple[list[bytes], dict[str, FileInfo]]:
        """Reads ranges that are not empty, nearby ones of a file by one request.

        Args:
            ranges: Ranges of any files.
            short: Whether a range may exceed its file: then its bytes are fewer.

        Returns:
            The bytes of each range, and what the answers told about the files.

        Raises:
            SourceError: When a range exceeds its file, or the file does not exist; names it.
        """
        parts = list(joined(ranges))
        wholes = [whole for whole, _ in parts]
        answers = _wait(self.begin(wholes, urgent=True), wholes)
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
        (listed,) = _wait(
            self._begin([folder], lambda url: self._list(url, below)), [folder]
        )
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
        root = folder.partition("://")[0] + "://" + urlsplit(folder).netloc + "/"
        urls = {root + quote(path): info for path, info in files.items()}
        return urls, [f"{root}{quote(path)}/" for path in folders]

    def first_names(self, folders: Sequence[str]) -> Sequence[Sequence[str]]:
        """Lists up to a thousand names in each folder, with one request each; none where it can't be listed."""
        return _wait(self._begin(folders, self._first_names), folders)

    def _first_names(self, folder: str) -> Sequence[str]:
        from obstore.exceptions import BaseError, InvalidPathError

        try:
            store, prefix = self._located(folder)
            for entries in store.list(prefix, chunk_size=1000):
                return [entry["path"].rpartition("/")[2] for entry in entries]
        except InvalidPathError:
            listed = list_around(folder, below=True)
            return [name.rpartition("/")[2] for name in listed.files[:1000]]
        except (
            BaseError,
            OSError,
        ) as error:  # as where the credentials don't allow it
            log.debug("%s can't be listed: %s", redact(folder), redact(str(error)))
        return []

    def _look_up(self, location: str) -> FileInfo | None:
        store, key = self._located(location)
        answer = attempt(
            lambda: self._get(location, (0, 1)), location, expected=False
        )
        if answer is None or answer.info is not None:
            if answer is None:
                return None
            return answer.info
        # No server has a byte of an empty file, so this asks for the file: it may have grown.
        meta = attempt(lambda: store.head(key), location, expected=True)
        if meta is None:
            return None
        return _info(meta)

    def _read(self, wanted: ByteRange) -> Answer | None:
        span = wanted.start, wanted.stop
        return attempt(
            lambda: self._get(wanted.location, span), str(wanted), expected=True
        )

    def _get(self, location: str, span: tuple[int, int]) -> Answer:
        store, key = self._located(location)
        try:
            result = store.get(key, options={"range": span})
            content = result.bytes()
        except Exception as error:
            if _PAST_THE_END.search(str(error)):
                return Answer(None, b"")
            if urlsplit(location).scheme in BUCKETS or not _WITHOUT_RANGES.search(
                str(error)
            ):
                raise
        else:
            return Answer(_info(result.meta), bytes(content))
        return self._get_from_web(location, span)

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

    def _list(self, folder: str, below: bool) -> Any:
        """Entries and subfolders of a folder; None if obstore refuses one of its keys."""
        from obstore.exceptions import InvalidPathError

        store, prefix = self._located(folder)

        def ask() -> Any:
            try:
                if below and prefix:
                    return store.list(prefix).collect(), []
                level = store.list_with_delimiter(prefix)
                if "" in level["common_prefixes"]:
                    return None  # a key begins with "/", which obstore drops
                if below:
                    return store.list().collect(), []
            except InvalidPathError:
                return None
            return level["objects"], level["common_prefixes"]

        return attempt(ask, folder, expected=True)

    def _begin(
        self,
        asked: Sequence[Any],
        ask: Callable[[Any], Any],
        urgent: bool = True,
    ) -> Sequence["Future[Any]"]:
        if not asked:
            return []
        return process_requests().begin(
            [Request(partial(ask, item), urgent) for item in asked]
        )

    def _located(self, location: str) -> tuple[Any, str]:
        """The store of a URL, which is opened once, and the key in it."""
        url, key = split_url(location)
        check_key(location, key)
        with self._lock:
            if url not in self._stores:
                self._stores[url] = open_object_store(url)
            return self._stores[url], key


def _info(meta: Any) -> FileInfo:
    changed = meta["last_modified"].timestamp()  # 0 if the server does not send it
    return FileInfo(
        meta["size"], (meta["e_tag"] or (str(changed) if changed else "")).encode()
    )


def _wait(futures: Sequence["Future[Any]"], asked: Sequence[object]) -> list[Any]:
    """Waits for all answers, with log lines during a long wait; if one fails, the others are cancelled."""
    patience = Patience(NOTICE, PATIENCE)
    answers: list[Any] = []
    try:
        while len(answers) < len(futures):
            try:
                answers.append(futures[len(answers)].result(patience.rest))
            except TimeoutError:
                # one behind those that are silent may have failed
                for future in futures:
                    if future.done() and future.exception() is not None:
                        return [future.result()]
                patience.check_storage(str(asked[len(answers)]))
    finally:
        if len(answers) < len(futures):
            for future in futures:
                future.cancel()
    return answers
