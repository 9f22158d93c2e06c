"""The protocol of Google Cloud Storage on this machine, as far as the emulator of the package registry goes.

It answers `bytes=a-b` and `bytes=a-`, but sends the whole object for `bytes=-n`, and serves one request at a time.
"""

import itertools
import json
import urllib.request
from pathlib import Path
from typing import final
from urllib.parse import quote

from tests.limits import HANG
from tests.servers.child import ChildServer


@final
class GcsServer:
    """An emulator in a process of its own; what it holds, it holds in memory.

    Attributes:
        url: the endpoint.
    """

    def __init__(self) -> None:
        command = [
            "-W",
            "error",
            "-m",
            "gcp_storage_emulator",
            "start",
            "-H",
            "127.0.0.1",
            "--in-memory",
            "--quiet",
            "--port",
        ]
        self._server = ChildServer(lambda port: [*command, str(port)], "/")
        self.url = self._server.url
        self._numbers = itertools.count()

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What a client's environment must hold from its start; `endpoint`: of a proxy before this server."""
        return {"TENSORSTORE_GCS_HTTP_URL": endpoint or self.url, "GOOGLE_AUTH_TOKEN_FOR_TESTING": "test"}

    def bucket(self) -> str:
        """A new, empty bucket."""
        name = f"bucket{next(self._numbers)}"  # it does not decode %2D
        self._post("/storage/v1/b?project=test", json.dumps({"name": name}).encode(), "application/json")
        return name

    def upload(self, folder: Path, bucket: str, prefix: str = "") -> None:
        """Copies the files below `folder` to names that begin with `prefix`, which needs its own slash at the end."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = quote(prefix + path.relative_to(folder).as_posix(), safe="")
                where = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
                self._post(where, path.read_bytes(), "application/octet-stream")

    def close(self) -> None:
        """Ends the server."""
        self._server.close()

    def _post(self, path: str, body: bytes, content_type: str) -> None:
        request = urllib.request.Request(self.url + path, body, {"Content-Type": content_type})
        with urllib.request.urlopen(request, timeout=HANG) as response:
            response.read()
