"""Lists folders of the Hugging Face Hub by its API."""

import json
import re
import time
import urllib.error
from collections.abc import Mapping
from urllib.parse import quote

from loadax.errors import SourceError, StorageError
from loadax.files.hub import authorization, endpoint, hub_place
from loadax.files.object_stores import PAUSES, failure
from loadax.files.web_request import open_web
from loadax.redaction import redact, redacted

_SECOND_TRY = 0.2  # seconds before the first retry
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')


def list_hub(folder: str, below: bool) -> tuple[Mapping[str, None], list[str]]:
    """Lists a folder of the Hub as `RemoteFiles.list` does, without sizes: they are asked of the files themselves.

    Raises:
        StorageError: When the Hub refuses, or names another server.
    """
    place = hub_place(folder)
    files: dict[str, None] = {}
    folders: list[str] = []
    url: str | None = place.tree(below)
    while url is not None:
        page, url = _page(url, folder)
        for entry in page:
            location = f"{place.root}/{quote(entry['path'])}"
            if entry["type"] == "file":
                files[location] = None
            elif not below:
                folders.append(f"{location}/")
    return files, folders


def first_hub_names(folder: str) -> list[str]:
    """Names of the files below a folder of the Hub; none where it can't be listed."""
    try:
        files, _ = list_hub(folder, below=True)
    except SourceError:
        return []
    return [url.rpartition("/")[2] for url in files]


def _page(url: str, folder: str) -> tuple[list[dict[str, str]], str | None]:
    """Entries of a page of a list, and the URL of the next page."""
    if not url.startswith(f"{endpoint()}/"):
        raise StorageError(
            f"{folder}: the Hub names {redact(url)} as the next page of its list, "
            "which is on another server; report this to whoever runs HF_ENDPOINT"
        )
    pauses = iter((_SECOND_TRY, *PAUSES))
    while True:
        try:
            with open_web(url, authorization()) as response:
                following = _NEXT.search(response.headers.get("Link") or "")
                page: list[dict[str, str]] = json.load(response)
                return page, following and following[1]
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return [], None
            pause = next(pauses, None)
            if pause is None or (error.code < 500 and error.code != 429):
                raise failure(
                    OSError(f"error: status code: {error.code} {error.reason}"),
                    folder,
                ) from None
        except (OSError, ValueError) as error:
            pause = next(pauses, None)
            if pause is None:
                raise failure(error, folder) from redacted(error)
        time.sleep(pause)
