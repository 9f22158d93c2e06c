"""Which zarr arrays lie under a path: TensorStore opens arrays, but does not know zarr's groups."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorstore as ts

from loadax.errors import SourceError

_PATIENCE = 60.0  # seconds for one small metadata file


def find_arrays(path: Any, variables: Sequence[str] | str | None) -> Any:
    """The TensorStore spec of the array at `path`, or a dict of those of a group's variables."""
    text = os.fspath(path)
    url = text if "://" in text else Path(text).absolute().as_uri()
    url = url if url.endswith("/") else url + "/"
    node = _node(url)
    if node is None:
        raise SourceError(f"{text}: there is no zarr array or group here (no zarr.json, .zarray or .zgroup); check the path")
    driver, metadata = node
    if driver is not None:
        if variables is not None:
            raise SourceError(f"{text} is an array, not a group, so variables={variables!r} can't be chosen; leave it out")
        return {"driver": driver, "kvstore": url}
    members = _members(url, metadata)
    names = members if variables is None else [variables] if isinstance(variables, str) else list(variables)
    if not names:
        raise SourceError(f"{text} is a zarr group without arrays in it; pass the path of an array, or variables=[…]")
    found = {}
    for name in names:
        member = _node(f"{url}{name}/")
        if member is None or member[0] is None:
            raise SourceError(f"{text} is a zarr group that has no array {name!r}; its arrays are {members or 'not listed'}")
        found[name] = {"driver": member[0], "kvstore": f"{url}{name}/"}
    return found


def _node(url: str) -> tuple[str | None, dict[str, Any]] | None:
    """(driver of the array or None for a group, its metadata), or None when nothing is there."""
    store = ts.KvStore.open(url).result(timeout=_PATIENCE)
    for key, driver in (("zarr.json", "zarr3"), (".zarray", "zarr"), (".zgroup", None), (".zmetadata", None)):
        value = store.read(key).result(timeout=_PATIENCE)
        if value.state == "value":
            metadata = json.loads(value.value)
            return (None if metadata.get("node_type") == "group" else driver), metadata
    return None


def _members(url: str, metadata: dict[str, Any]) -> list[str]:
    """The names of a group's arrays, from its consolidated metadata, or by looking."""
    consolidated = metadata.get("consolidated_metadata") or {}
    if consolidated.get("metadata"):
        return sorted(name for name, node in consolidated["metadata"].items() if node.get("node_type") == "array")
    store = ts.KvStore.open(url).result(timeout=_PATIENCE)
    keys = (key.decode() for key in store.list().result(timeout=_PATIENCE))
    folders = {key.rsplit("/", 1)[0] for key in keys if key.endswith(("/zarr.json", "/.zarray"))}
    return sorted(name for name in folders if (node := _node(f"{url}{name}/")) is not None and node[0] is not None)
