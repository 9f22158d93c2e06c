"""RemoteFiles: sizes, listings and byte ranges of files at URLs, all requests of a call concurrently."""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar, final
from urllib.parse import quote, urlsplit

from loadax.core.log import log
from loadax.core.patience import NOTICE, Patience
from loadax.errors import SourceError, StorageError
from loadax.redaction import redact, redacted
from loadax.sources.io.byte_ranges import ByteRange, FileInfo, joined, no_such_file, too_short
from loadax.sources.io.exit import cancelled_at_exit
from loadax.sources.io.object_stores import PATIENCE, failure, open_object_store, split_url

_REQUESTS = 64  # concurrent requests: a step of 64 scattered rows then takes about one round trip
_SECOND_TRY = 0.2  # seconds before the one retry of a request that obstore does not retry, such as a stray 404
_RETRIED = re.compile(r"after \d+ retries|body error")
_PAST_THE_END = re.compile("status code: 416")
_ASKED = TypeVar("_ASKED")


class _Answer(NamedTuple):
    info: FileInfo | None
    content: bytes


@final
class RemoteFiles:
    """Files at URLs. Thread-safe; pickles without state: another process opens its own connections."""

    def __init__(self) -> None:
        self._stores: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return RemoteFiles, ()

    def look_up(self, locations: Sequence[str]) -> list[FileInfo | None]:
        """Finds size and generation of files, with one request each; None for a file that does not exist."""
        return _run(locations, self._look_up)

    def read(self, ranges: Sequence[ByteRange], short: bool = False) -> tuple[list[bytes], dict[str, FileInfo]]:
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
                content = answer.content[wanted.start - whole.start : wanted.stop - whole.start]
                if len(content) < wanted.stop - wanted.start and not short:
                    raise too_short(wanted)
                contents[index] = content
            if answer.info is not None:
                infos[whole.location] = answer.info
        return contents, infos

    def list(self, folder: str, below: bool) -> tuple[dict[str, FileInfo], list[str]]:
        """Lists the files of a folder in a bucket by URL, and the URLs of its subfolders, which end with "/".

        Args:
            folder: URL that ends with "/".
            below: Whether to list the files of its subfolders too, instead of the subfolders.

        Raises:
            SourceError: When the server can't list files (HTTP can't).
        """
        if urlsplit(folder).scheme in ("http", "https"):
            raise SourceError(f"{folder}: this kind of server can't list its files; pass a list of URLs")
        ((entries, folders),) = _run([folder], lambda url: self._list(url, below))
        root = folder.partition("://")[0] + "://" + urlsplit(folder).netloc + "/"
        files = {root + quote(entry["path"]): _info(entry) for entry in entries}
        return files, [f"{root}{quote(path)}/" for path in folders]

    def first_names(self, folders: Sequence[str]) -> Sequence[Sequence[str]]:
        """Lists up to a thousand names in each folder, with one request each; none where it can't be listed."""
        return _run(folders, self._first_names)

    async def _first_names(self, folder: str) -> Sequence[str]:
        from obstore.exceptions import BaseError

        try:
            store, prefix = self._located(folder)
            async for entries in store.list(prefix, chunk_size=1000):
                return [entry["path"].rpartition("/")[2] for entry in entries]
        except (BaseError, OSError) as error:  # as where the credentials don't allow it
            log.debug("%s can't be listed: %s", redact(folder), redact(str(error)))
        return []

    async def _look_up(self, location: str) -> FileInfo | None:
        store, key = self._located(location)
        answer = await _second_try(lambda: _get(store, key, (0, 1)), location)
        if answer is None or answer.info is not None:
            return None if answer is None else answer.info
        # No server has a byte of an empty file, so this asks for the file: it may have grown.
        meta = await _second_try(lambda: store.head_async(key), location)
        return None if meta is None else _info(meta)

    async def _read(self, wanted: ByteRange) -> _Answer | None:
        store, key = self._located(wanted.location)
        return await _second_try(lambda: _get(store, key, (wanted.start, wanted.stop)), str(wanted))

    async def _list(self, folder: str, below: bool) -> Any:
        store, prefix = self._located(folder)

        async def ask() -> Any:
            if below:
                return await store.list(prefix).collect_async(), []
            listed = await store.list_with_delimiter_async(prefix)
            return listed["objects"], listed["common_prefixes"]

        return await _second_try(ask, folder)

    def _located(self, location: str) -> tuple[Any, str]:
        """The store of a URL, which is opened once, and the key in it."""
        url, key = split_url(location)
        with self._lock:
            if url not in self._stores:
                self._stores[url] = open_object_store(url)
            return self._stores[url], key


async def _get(store: Any, key: str, span: tuple[int, int]) -> _Answer:
    try:
        result = await store.get_async(key, options={"range": span})
        content = await result.bytes_async()
    except Exception as error:
        if _PAST_THE_END.search(str(error)):
            return _Answer(None, b"")
        raise
    return _Answer(_info(result.meta), bytes(content))


def _info(meta: Any) -> FileInfo:
    changed = meta["last_modified"].timestamp()  # 0 if the server does not send it
    return FileInfo(meta["size"], (meta["e_tag"] or (str(changed) if changed else "")).encode())


async def _second_try(ask: Callable[[], Awaitable[Any]], name: str) -> Any:
    """Asks, and retries once what obstore does not retry; None: there is no such file."""
    from obstore.exceptions import BaseError, NotSupportedError, PermissionDeniedError, UnauthenticatedError

    for last in (False, True):
        try:
            return await ask()
        except FileNotFoundError:
            if last:
                return None
        except NotSupportedError as error:
            problem = "the server ignores Range requests and sends whole files"
            message = f"{redact(name)}: {problem}; use a server that supports Range requests"
            raise StorageError(message) from redacted(error)
        except (BaseError, ValueError, OSError) as error:
            refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
            if last or refused or _RETRIED.search(str(error)):
                raise failure(error, name) from redacted(error)
        await asyncio.sleep(_SECOND_TRY)
    raise AssertionError


def _run(asked: Sequence[_ASKED], ask: Callable[[_ASKED], Coroutine[Any, Any, Any]]) -> list[Any]:
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


async def _all(asked: Sequence[_ASKED], ask: Callable[[_ASKED], Coroutine[Any, Any, Any]]) -> list[Any]:
    width = asyncio.Semaphore(_REQUESTS)

    async def one(item: _ASKED) -> Any:
        async with width:
            return await ask(item)

    with cancelled_at_exit():
        tasks = [asyncio.ensure_future(one(item)) for item in asked]
        patience = Patience(NOTICE, PATIENCE)
        try:
            while True:
                done, waiting = await asyncio.wait(tasks, timeout=patience.rest, return_when=asyncio.FIRST_EXCEPTION)
                failed = next((task for task in tasks if task in done and task.exception() is not None), None)
                if failed is not None or not waiting:
                    return [task.result() for task in ([failed] if failed else tasks)]
                patience.check_storage(
                    str(next(item for item, task in zip(asked, tasks, strict=True) if task in waiting))
                )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
