"""The Hugging Face Hub: addresses of its files, and the user's token."""

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from loadax.errors import SourceError

_ENDPOINT = "https://huggingface.co"
_PLACE = re.compile(
    r"(?P<root>hf://(?P<kind>datasets|buckets)/(?P<name>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert/[\w.-]+|pr/\d+)|[^/]+))?)(?:/(?P<key>.*))?"
)


class HubPlace(NamedTuple):
    """A file or folder of the Hub.

    Args:
        root: URL of its dataset or bucket, as it was given.
        kind: "datasets" or "buckets".
        name: Owner and name.
        revision: Branch, tag or commit of a dataset; empty for buckets.
        key: Path in it.
    """

    root: str
    kind: str
    name: str
    revision: str
    key: str

    @property
    def files(self) -> str:
        """URL below which its files are."""
        if self.kind == "buckets":
            return f"{endpoint()}/buckets/{self.name}/resolve"
        revision = quote(self.revision, safe="")
        return f"{endpoint()}/datasets/{self.name}/resolve/{revision}"

    def tree(self, recursive: bool) -> str:
        """URL of the list of what is below it."""
        parts = [f"{endpoint()}/api/{self.kind}/{self.name}/tree"]
        if self.revision:
            parts.append(quote(self.revision, safe=""))
        if self.key:
            parts.append(quote(self.key.rstrip("/"), safe=""))
        return f"{'/'.join(parts)}?recursive={str(recursive).lower()}"


def hub_place(location: str) -> HubPlace:
    """The place that an `hf://` URL names.

    Raises:
        SourceError: When it names no dataset and no bucket; shows it.

    Examples:
        >>> from loadax.files.hub import hub_place
        >>> hub_place("hf://datasets/me/words@v1/train/0.parquet")[1:]
        ('datasets', 'me/words', 'v1', 'train/0.parquet')
    """
    found = _PLACE.fullmatch(location)
    if found is None or (found["kind"] == "buckets" and found["revision"]):
        raise SourceError(
            f"{location}: files of the Hub are at hf://datasets/OWNER/NAME/PATH, "
            "hf://datasets/OWNER/NAME@REVISION/PATH or hf://buckets/OWNER/NAME/PATH"
        )
    if found["kind"] == "datasets":
        revision = unquote(found["revision"] or "main")
    else:
        revision = ""
    key = unquote(found["key"] or "")
    return HubPlace(found["root"], found["kind"], found["name"], revision, key)


def endpoint() -> str:
    """URL of the Hub, as its own library has it."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or _ENDPOINT


def authorization() -> dict[str, str]:
    """The header that sends the user's token, as the Hub's own library finds it; empty without one."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        home = os.environ.get("HF_HOME", "~/.cache/huggingface")
        file = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
        try:
            token = Path(os.path.expandvars(file)).expanduser().read_text().strip()
        except OSError:
            return {}
    if not token:
        return {}
    return {"Authorization": f"Bearer {token}"}
