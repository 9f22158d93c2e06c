"""Finds the zarr arrays under a path, since TensorStore opens arrays but not groups."""

import json
import time
from collections.abc import Sequence
from typing import Any, final

import tensorstore as ts

from loadax.core.arguments import entries
from loadax.core.arguments import path as checked_path
from loadax.errors import SourceError
from loadax.redaction import redacted
from loadax.sources.io.kvstore import address_of, key_value_spec, new_context, wait
from loadax.sources.io.paths import local_path
from loadax.sources.zarr.array import PAUSE
from loadax.sources.zarr.manifest import FINISHED, PARTIAL, check_finished

_METADATA = (("zarr.json", "zarr3"), (".zarray", "zarr"), (".zmetadata", None), (".zgroup", None))
_OCDBT = "manifest.ocdbt"  # what makes a folder a database, in which TensorStore keeps many small objects in few files
_CONTAINERS = {".zip": "zip"}  # by the end of a path


def find_arrays(path: Any, variables: Sequence[str] | str | None) -> Any:
    """The TensorStore spec of the array at `path`, or a dict of those of a group's variables.

    Args:
        path: a folder, a `.zip` file or an OCDBT database; a local path or a URL.
        variables: which arrays of a group; None: all.
    """
    root = Folder(checked_path("path", path, "the path or URL of a zarr array or group"))
    check_finished(root.store, root.text)
    # TensorStore writes arrays but no groups, so a folder of arrays counts as one.
    driver, metadata = root.node("") or (None, {})
    if driver is not None:
        if variables is not None:
            raise SourceError(
                f"{root.text} is an array, not a group, so variables={variables!r} can't be chosen; leave it out",
                argument="variables",
            )
        above = root.above()
        if above is not None:  # an array of a group that loadax has not written to its end
            check_finished(above, f"the group above {root.text}")
        return root.array(driver, "")
    members = root.members(metadata) if variables is None else []
    names = (
        members
        if variables is None
        else [variables]
        if isinstance(variables, str)
        else entries("variables", variables, "names of arrays")
    )
    if not names:
        raise SourceError(f"{root.text}: there is no zarr array here, and no group of arrays; check the path")
    specs = {}
    for name in names:
        member = root.node(f"{name}/")
        if member is None or member[0] is None:
            raise SourceError(f"{root.text} has no zarr array {name!r}; its arrays are {root.shown(metadata)}")
        specs[name] = root.array(member[0], f"{name}/")
    return specs


def members_at(leaf: Any) -> str:
    """The names of the arrays of the group that a TensorStore spec or URL points to, for a message."""
    spec = (leaf if isinstance(leaf, ts.Spec) else ts.Spec(leaf)).to_json()
    folder = Folder(address_of(spec.get("kvstore")))
    node = folder.node("")
    return folder.shown(node[1] if node is not None else {})


@final
class Folder:
    """What lies under a path: its metadata, and the arrays in it."""

    def __init__(self, text: str):
        self.text = text
        self._context = new_context(0)
        container = next((kind for end, kind in _CONTAINERS.items() if text.rstrip("/").endswith(end)), None)
        address = f"{text.rstrip('/')}|{container}:" if container else text
        path = local_path(text)
        if container is None and path is not None and path.is_file():
            raise SourceError(f"{text} is a file; pass the folder of a zarr array or group, or a .zip file of one")
        spec = key_value_spec(address if address.endswith(("/", ":")) else f"{address}/")
        self.store, self._spec = self._open(spec), spec
        self._local = path if container is None else None
        self._check_regular([FINISHED, PARTIAL])
        if container is None and spec["driver"] != "ocdbt" and self._ask([_OCDBT])[0].state == "value":
            spec = {"driver": "ocdbt", "base": spec}
            self.store, self._spec = self._open(spec), spec

    def array(self, driver: str, below: str) -> dict[str, Any]:
        """The spec of the array at a path below, or at "" itself."""
        return {"driver": driver, "kvstore": {**self._spec, "path": self._spec.get("path", "") + below}}

    def above(self) -> ts.KvStore | None:
        """The folder that this one lies in."""
        parts = self._spec.get("path", "").rstrip("/").rpartition("/")
        return self._open({**self._spec, "path": parts[0] + parts[1]}) if parts[0] else None

    def node(self, below: str) -> tuple[str | None, dict[str, Any]] | None:
        """(driver of the array or None for a group, its metadata), or None when nothing is there."""
        keys = [below + key for key, _ in _METADATA]
        answers = self._ask(keys)
        if local_path(self.text) is None and all(answer.state != "value" for answer in answers):
            time.sleep(PAUSE)
            answers = self._ask(keys)  # servers say "not found" by mistake, too
        for key, (_, driver), answer in zip(keys, _METADATA, answers, strict=True):
            if answer.state == "value":
                try:
                    metadata = json.loads(answer.value)
                except (ValueError, RecursionError) as error:
                    raise SourceError(
                        f"{self.text.rstrip('/')}/{key} is no JSON ({error}); was it cut short? Copy it again"
                    ) from error
                if not isinstance(metadata, dict):
                    raise SourceError(
                        f"{self.text.rstrip('/')}/{key} holds a {type(metadata).__name__}, "
                        "no zarr metadata; copy it again"
                    )
                return (None if metadata.get("node_type") == "group" else driver), metadata
        return None

    def members(self, metadata: dict[str, Any]) -> list[str]:
        """The names of a group's arrays, from its consolidated metadata, or by looking."""
        consolidated = self._consolidated(metadata)
        if consolidated and "zarr_consolidated_format" not in metadata:
            return sorted(name for name, node in consolidated.items() if node.get("node_type") == "array")
        if consolidated is not None and "zarr_consolidated_format" in metadata:  # of version 2
            return sorted(key.removesuffix("/.zarray") for key in consolidated if key.endswith("/.zarray"))
        try:
            keys = [key.decode() for key in wait(self.store.list(), self._reading)]
        except NotImplementedError as error:
            problem = (
                "can't be listed, and has no consolidated metadata"
                if metadata
                else "holds no zarr metadata, and can't be listed"
            )
            raise SourceError(
                f"{self.text} {problem}; check the URL, and if it is a group name its arrays in variables=[…]"
            ) from redacted(error)
        folders = {key.rsplit("/", 1)[0] for key in keys if key.endswith(("/zarr.json", "/.zarray"))}
        return sorted(name for name in folders if (node := self.node(f"{name}/")) is not None and node[0] is not None)

    def _consolidated(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        """The metadata of all nodes below, where the group repeats it.

        Raises:
            SourceError: when it is something else than a JSON object of objects.
        """
        consolidated: Any = (
            metadata if "zarr_consolidated_format" in metadata else metadata.get("consolidated_metadata")
        )
        if consolidated is None:
            return None
        nodes = consolidated.get("metadata") if isinstance(consolidated, dict) else consolidated
        if nodes is None and consolidated is not metadata:
            return None
        if not isinstance(nodes, dict) or not all(isinstance(node, dict) for node in nodes.values()):
            raise SourceError(
                f"{self.text}: its consolidated metadata is damaged: it must be an object of objects, not "
                f"{nodes!r:.60}; copy zarr.json (or .zmetadata) again, or write it anew with zarr.consolidate_metadata"
            )
        return nodes

    def shown(self, metadata: dict[str, Any]) -> str:
        """The names of a group's arrays for a message."""
        try:
            return str(self.members(metadata))
        except SourceError:
            return "not listed"

    def _check_regular(self, keys: Sequence[str]) -> None:
        """Refuses pipes and the like, for which TensorStore would wait."""
        for path in [self._local / key for key in keys] if self._local is not None else ():
            if path.exists() and not path.is_file():
                raise SourceError(
                    f"{path} is not a regular file, so it holds no zarr metadata; delete it, or copy the store again"
                )

    @property
    def _reading(self) -> str:
        return f"{self.text} can't be read"

    def _open(self, spec: dict[str, Any]) -> ts.KvStore:
        return wait(ts.KvStore.open(spec, context=self._context), self._reading)

    def _ask(self, keys: list[str]) -> list[Any]:
        """The store's answers about some small objects, all asked for at once."""
        self._check_regular(keys)
        if str(self._spec.get("driver", "")) == "zip":
            # Of two reads at once of a zip file that is not there, TensorStore 0.1.86 now and then never answers one.
            return [wait(self.store.read(key), self._reading) for key in keys]
        under_way = [self.store.read(key) for key in keys]
        return [wait(answer, self._reading) for answer in under_way]
