"""A proxy before a web server that makes it as far away, as narrow and as faulty as a bucket.

`python benchmarks/storage_proxy.py PORT UPSTREAM_PORT ROOT` listens on 127.0.0.1. It delays each request, counts
requests and bytes, caps the bandwidth, refuses requests above a rate with 503, and breaks transfers. `POST /.proxy`
with a JSON object of `Weather` starts new counts, and `GET /.proxy` reads them. nginx can't list, so it answers S3's
`ListObjectsV2` itself, from the folder ROOT, whose folders are buckets.
"""

import asyncio
import json
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, final
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

_PART = 64 << 10  # bytes that are sent at once where the bandwidth is capped
_CUT = 20 << 10  # bytes after which a transfer is cut
_BURST = 0.1  # seconds of requests that may come at once


@dataclass(frozen=True)
class Weather:
    """How requests fare.

    Args:
        latency: Seconds before a request is passed on.
        bandwidth: Bytes a second of all answers together; 0: no limit.
        rate: Requests a second, above which they are answered with 503; 0: no limit.
        refused: Share of requests that are answered with 503.
        reset: Share of connections that are reset in place of an answer.
        cut: Share of answers that end after 20 KB.
        late: Share of requests that take `late_seconds` more.
        late_seconds: Seconds.
    """

    latency: float = 0.0
    bandwidth: float = 0.0
    rate: float = 0.0
    refused: float = 0.0
    reset: float = 0.0
    cut: float = 0.0
    late: float = 0.0
    late_seconds: float = 5.0


@final
class Counts:
    """Requests since the last start, and how many were in flight."""

    def __init__(self) -> None:
        self.requests = self.missing = self.refused = self.broken = self.bytes = 0
        self.in_flight = self.most = 0
        self._busy = self._area = 0.0
        self._changed = monotonic()

    def change(self, by: int) -> None:
        """A request begins or ends."""
        now = monotonic()
        if self.in_flight:
            self._busy += now - self._changed
            self._area += self.in_flight * (now - self._changed)
        self._changed = now
        self.in_flight += by
        self.most = max(self.most, self.in_flight)

    def told(self) -> dict[str, float]:
        """The counts; `mean` is of the time in which a request was in flight."""
        self.change(0)
        numbers = ("requests", "missing", "refused", "broken", "bytes", "most")
        return {name: getattr(self, name) for name in numbers} | {"mean": self._area / (self._busy or 1.0)}


@final
class Proxy:
    """Serves connections, each with one of its own to the server behind."""

    def __init__(self, upstream: int, root: Path) -> None:
        self._upstream, self._root = upstream, root
        self._weather, self._counts = Weather(), Counts()
        self._free = 0.0  # time at which the line is free
        self._used = monotonic()  # time up to which the requests of the rate are used
        self._random = random.Random(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of a connection."""
        behind: Any = None
        counts = self._counts
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.split(b" ", 2)
                if target == b"/.proxy":
                    await self._controlled(method, head, reader, writer)
                    continue
                counts = self._counts
                counts.requests += 1
                counts.change(1)
                try:
                    fate = await self._fate(counts)
                    if fate == "reset":
                        writer.transport.abort()
                        return
                    if fate == "refused":
                        body = "<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
                        _answer(writer, "503 Slow Down", body, "application/xml")
                        continue
                    listed = self._listed(target.decode())
                    if listed is not None:
                        _answer(writer, "200 OK", listed, "application/xml")
                        continue
                    if behind is None:
                        behind = await asyncio.open_connection("127.0.0.1", self._upstream, limit=1 << 20)
                    if not await self._passed_on(method, head, behind, writer, counts):
                        return
                finally:
                    counts.change(-1)
        except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):  # the last is of uvloop
            pass
        finally:
            writer.close()
            if behind is not None:
                behind[1].close()

    async def _fate(self, counts: Counts) -> str:
        """Delays a request; whether it is then "refused", "reset" or passed on ("")."""
        weather, drawn = self._weather, self._random.random
        latency = weather.latency + (weather.late_seconds if drawn() < weather.late else 0.0)
        if latency:
            await asyncio.sleep(latency)
        if drawn() < weather.reset:
            counts.broken += 1
            return "reset"
        is_over = False
        if weather.rate:
            now = monotonic()
            self._used = max(self._used, now - _BURST)
            is_over = self._used > now
            if not is_over:
                self._used += 1 / weather.rate
        if is_over or drawn() < weather.refused:
            counts.refused += 1
            return "refused"
        return ""

    async def _passed_on(
        self, method: bytes, head: bytes, behind: Any, writer: asyncio.StreamWriter, counts: Counts
    ) -> bool:
        """Sends a request to the server behind and its answer back; whether the connection goes on."""
        behind[1].write(head)
        answer = await behind[0].readuntil(b"\r\n\r\n")
        counts.missing += answer[9:12] == b"404"
        lines = answer.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        cut = self._weather.cut and length > _CUT and self._random.random() < self._weather.cut
        writer.write(answer)
        rest = 0 if method == b"HEAD" else _CUT if cut else length
        while rest:
            part = await behind[0].read(min(rest, _PART))
            if not part:
                raise ConnectionError
            rest -= len(part)
            counts.bytes += len(part)
            if self._weather.bandwidth:
                self._free = max(self._free, monotonic()) + len(part) / self._weather.bandwidth
                await asyncio.sleep(self._free - monotonic())
            writer.write(part)
            if writer.transport.get_write_buffer_size() > 1 << 20:
                await writer.drain()
        if cut:
            counts.broken += 1
            await writer.drain()
            writer.transport.abort()
        return not cut

    async def _controlled(
        self, method: bytes, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if method == b"POST":
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            self._weather = Weather(**json.loads(await reader.readexactly(length) or b"{}"))
            self._counts = Counts()
        _answer(writer, "200 OK", json.dumps(self._counts.told()), "application/json")

    def _listed(self, target: str) -> str | None:
        """S3's list of a bucket; None for other requests."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if query.get("list-type") != "2":
            return None
        bucket = unquote(parts.path).strip("/")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        root = self._root / bucket
        keys = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        keys = [key for key in keys if key.startswith(prefix)]
        folders: dict[str, None] = {}
        entries = []
        for key in keys:
            head, mark, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if mark:
                folders[prefix + head + delimiter] = None
                continue
            status = (root / key).stat()
            etag = f"{int(status.st_mtime):x}-{status.st_size:x}"  # as nginx has it
            entries.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>&quot;{etag}&quot;</ETag><Size>{status.st_size}</Size></Contents>"
            )
        start = int(query.get("continuation-token", "0"))
        page = entries[start : start + 1000]
        more = start + 1000 < len(entries)
        rest = f"<NextContinuationToken>{start + 1000}</NextContinuationToken>" if more else ""
        common = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders)
        return (
            f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>{quote(bucket)}</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{rest}{''.join(page)}{common}</ListBucketResult>"
        )


def _answer(writer: asyncio.StreamWriter, status: str, body: str, kind: str) -> None:
    content = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)


async def _main(port: int, upstream: int, root: Path) -> None:
    proxy = Proxy(upstream, root)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=1 << 20, backlog=1024)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with suppress(ImportError):
        import uvloop

        uvloop.install()
    with suppress(KeyboardInterrupt):
        asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
