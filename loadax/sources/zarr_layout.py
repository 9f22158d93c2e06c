"""Which zarr arrays lie under a path: TensorStore opens arrays, but does not know zarr's groups."""

import json
import os
from collections.abc import Callable, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tensorstore as ts

from loadax.errors import SourceError

_PATIENCE = 60.0  # seconds for one small metadata file


def find_arrays(path: Any, variables: Sequence[str] | str | None) -> Any:
    """The TensorStore spec of the array at `path`, or a dict of those of a group's variables."""
    if not isinstance(path, str | os.PathLike):
        raise SourceError(f"{path!r} is a {type(path).__name__}, not a path; pass that of a zarr array or group, or its URL")
    text = os.fspath(path)
    url = text if "://" in text else Path(text).absolute().as_uri()
    url = url if url.endswith("/") else url + "/"
    # TensorStore writes arrays but no groups, so a folder of arrays counts as one.
    driver, metadata = _node(url) or (None, {})
    if driver is not None:
        if variables is not None:
            raise SourceError(f"{text} is an array, not a group, so variables={variables!r} can't be chosen; leave it out")
        return {"driver": driver, "kvstore": url}
    members = _members(url, metadata) if variables is None else []
    names = members if variables is None else [variables] if isinstance(variables, str) else list(variables)
    if not names:
        raise SourceError(f"{text}: there is no zarr array here, and no group of arrays; check the path")
    found = {}
    for name in names:
        member = _node(_below(url, name))
        if member is None or member[0] is None:
            raise SourceError(f"{text} has no zarr array {name!r}; its arrays are {_shown(url, metadata)}")
        found[name] = {"driver": member[0], "kvstore": _below(url, name)}
    return found


def _shown(url: str, metadata: dict[str, Any]) -> str:
    try:
        return str(_members(url, metadata))
    except SourceError:
        return "not listed"


def _below(url: str, name: str) -> str:
    """The URL of an array of a group; names may hold any character."""
    return f"{url}{quote(name)}/"


def _node(url: str) -> tuple[str | None, dict[str, Any]] | None:
    """(driver of the array or None for a group, its metadata), or None when nothing is there."""
    for key, driver in (("zarr.json", "zarr3"), (".zarray", "zarr"), (".zmetadata", None), (".zgroup", None)):
        value = _ask(url, methodcaller("read", key))
        if value.state == "value":
            try:
                metadata = json.loads(value.value)
            except ValueError as error:
                raise SourceError(f"{url}{key} is no JSON ({error}); was it cut short? Copy it again") from error
            return (None if metadata.get("node_type") == "group" else driver), metadata
    return None


def _ask(url: str, question: Callable[[ts.KvStore], Any]) -> Any:
    """The answer of the key-value store at `url` to a small question."""
    try:
        store = ts.KvStore.open(url).result(timeout=_PATIENCE)
        return question(store).result(timeout=_PATIENCE)
    except NotImplementedError as error:
        raise SourceError(f"{url} can't be listed, and has no consolidated metadata; name its arrays in variables=[…]") from error
    except (ValueError, TimeoutError) as error:
        brief = str(error).split(" [source locations")[0]
        raise SourceError(f"{url} can't be read: {brief}; pass a local path, or a URL that TensorStore knows") from error


def _members(url: str, metadata: dict[str, Any]) -> list[str]:
    """The names of a group's arrays, from its consolidated metadata, or by looking."""
    consolidated = (metadata.get("consolidated_metadata") or {}).get("metadata")  # of version 3
    if consolidated:
        return sorted(name for name, node in consolidated.items() if node.get("node_type") == "array")
    if "zarr_consolidated_format" in metadata:  # of version 2
        return sorted(key.removesuffix("/.zarray") for key in metadata["metadata"] if key.endswith("/.zarray"))
    keys = [key.decode() for key in _ask(url, methodcaller("list"))]
    folders = {key.rsplit("/", 1)[0] for key in keys if key.endswith(("/zarr.json", "/.zarray"))}
    return sorted(name for name in folders if (node := _node(_below(url, name))) is not None and node[0] is not None)
