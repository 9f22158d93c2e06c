"""RemoteFiles: sizes, listings and byte ranges of files at URLs, all requests of a call concurrently."""

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar, final
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
from loadax.files.exit import cancelled_at_exit
from loadax.files.object_stores import PATIENCE, open_object_store, split_url
from loadax.files.odd_keys import check_key, list_around, warn_of_odd
from loadax.files.paths import BUCKETS
from loadax.files.web_range import read_web_range
from loadax.redaction import redact

# concurrent requests: a step of 64 scattered rows then takes about one round trip
_REQUESTS = 64
_PAST_THE_END = re.compile("status code: 416")
# What obstore says of a web server that answers a range with the whole file, or without the length of its answer.
_WITHOUT_RANGES = re.compile(
    "Range request not supported|Content-Length Header missing"
)
_ASKED = TypeVar("_ASKED")


class _Answer(NamedTuple):
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
        return _run(locations, self._look_up)

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
        answers = _run([whole for whole, _ in parts], self._read)
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
        (listed,) = _run([folder], lambda url: self._list(url, below))
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
        return _run(folders, self._first_names)

    async def _first_names(self, folder: str) -> Sequence[str]:
        from obstore.exceptions import BaseError, InvalidPathError

        try:
            store, prefix = self._located(folder)
            async for entries in store.list(prefix, chunk_size=1000):
                return [entry["path"].rpartition("/")[2] for entry in entries]
        except InvalidPathError:
            listed = await asyncio.to_thread(list_around, folder, below=True)
            return [name.rpartition("/")[2] for name in listed.files[:1000]]
        except (
            BaseError,
            OSError,
        ) as error:  # as where the credentials don't allow it
            log.debug("%s can't be listed: %s", redact(folder), redact(str(error)))
        return []

    async def _look_up(self, location: str) -> FileInfo | None:
        store, key = self._located(location)
        answer = await attempt(
            lambda: self._get(location, (0, 1)), location, expected=False
        )
        if answer is None or answer.info is not None:
            if answer is None:
                return None
            return answer.info
        # No server has a byte of an empty file, so this asks for the file: it may have grown.
        meta = await attempt(lambda: store.head_async(key), location, expected=True)
        if meta is None:
            return None
        return _info(meta)

    async def _read(self, wanted: ByteRange) -> _Answer | None:
        span = wanted.start, wanted.stop
        return await attempt(
            lambda: self._get(wanted.location, span), str(wanted), expected=True
        )

    async def _get(self, location: str, span: tuple[int, int]) -> _Answer:
        store, key = self._located(location)
        try:
            result = await store.get_async(key, options={"range": span})
            content = await result.bytes_async()
        except Exception as error:
            if _PAST_THE_END.search(str(error)):
                return _Answer(None, b"")
            if urlsplit(location).scheme in BUCKETS or not _WITHOUT_RANGES.search(
                str(error)
            ):
                raise
        else:
            return _Answer(_info(result.meta), bytes(content))
        return await asyncio.to_thread(self._get_from_web, location, span)

    def _get_from_web(self, location: str, span: tuple[int, int]) -> _Answer:
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
        return _Answer(answer.info, answer.content)

    async def _list(self, folder: str, below: bool) -> Any:
        """Entries and subfolders of a folder; None if obstore refuses one of its keys."""
        from obstore.exceptions import InvalidPathError

        store, prefix = self._located(folder)

        async def ask() -> Any:
            try:
                if below and prefix:
                    return await store.list(prefix).collect_async(), []
                level = await store.list_with_delimiter_async(prefix)
                if "" in level["common_prefixes"]:
                    return None  # a key begins with "/", which obstore drops
                if below:
                    return await store.list().collect_async(), []
            except InvalidPathError:
                return None
            return level["objects"], level["common_prefixes"]

        return await attempt(ask, folder, expected=True)

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


def _run(
    asked: Sequence[_ASKED], ask: Callable[[_ASKED], Coroutine[Any, Any, Any]]
) -> list[Any]:
    """Sends all requests, at most 64 at once, and waits for the answers, with log lines during a long wait."""
    if not asked:
        return []
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_all(asked, ask))
    # In a notebook: this thread's loop can't wait for another one.
    with ThreadPoolExecutor(1, "loadax-requests") as pool:
        return pool.submit(asyncio.run, _all(asked, ask)).result()


async def _all(
    asked: Sequence[_ASKED], ask: Callable[[_ASKED], Coroutine[Any, Any, Any]]
) -> list[Any]:
    width = asyncio.Semaphore(_REQUESTS)

    async def one(item: _ASKED) -> Any:
        async with width:
            return await ask(item)

    with cancelled_at_exit():
        tasks = [asyncio.ensure_future(one(item)) for item in asked]
        patience = Patience(NOTICE, PATIENCE)
        try:
            while True:
                done, waiting = await asyncio.wait(
                    tasks, timeout=patience.rest, return_when=asyncio.FIRST_EXCEPTION
                )
                failed = next(
                    (
                        task
                        for task in tasks
                        if task in done and task.exception() is not None
                    ),
                    None,
                )
                if failed is not None or not waiting:
                    return [task.result() for task in ([failed] if failed else tasks)]
                patience.check_storage(
                    str(
                        next(
                            item
                            for item, task in zip(asked, tasks, strict=True)
                            if task in waiting
                        )
                    )
                )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
