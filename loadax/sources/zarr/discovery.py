"""Finds the zarr arrays under a path, since TensorStore opens arrays but not groups."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import tensorstore as ts

from loadax.core.arguments import entries, path as checked_path
from loadax.errors import SourceError
from loadax.files.kvstore import key_value_spec, new_context, wait
from loadax.files.paths import local_path
from loadax.redaction import redacted
from loadax.sources.zarr.array import PAUSE
from loadax.sources.zarr.manifest import check_finished, json_object
from loadax.sources.zarr.names import FINISHED, LENGTHS, PARTIAL, RAGGED

_METADATA = (
    ("zarr.json", "zarr3"),
    (".zarray", "zarr"),
    (".zmetadata", None),
    (".zgroup", None),
)
# marks a folder as an OCDBT database, which stores many small objects in few files
_OCDBT = "manifest.ocdbt"


class RaggedArrays(NamedTuple):
    """The arrays of a store of ragged rows.

    Args:
        location: Path or URL of the store.
        manifest: Manifest of the store, which says which of its leaves are ragged.
        specs: TensorStore specs of its arrays, by name, with that of the lengths.
    """

    location: str
    manifest: dict[str, Any]
    specs: dict[str, Any]


def find_arrays(path: Any, variables: Sequence[str] | str | None) -> Any:
    """Returns the TensorStore spec of the array at `path`, or a dict of specs for a group; or `RaggedArrays`.

    Args:
        path: Path or URL of a folder, a `.zip` file or an OCDBT database.
        variables: Names of the group's arrays to open; None: all.
    """
    root = Folder(
        checked_path("path", path, "the path or URL of a zarr array or group")
    )
    manifest = check_finished(root.store, root.text)
    if manifest is not None and manifest["version"] == RAGGED:
        return _ragged_arrays(root, manifest)
    # TensorStore writes arrays but no groups, so a folder of arrays counts as one.
    driver, metadata = root.node("") or (None, {})
    if driver is not None:
        if variables is not None:
            what = (
                f"{root.text} is an array, not a group, so variables={variables!r} "
                "does not apply"
            )
            raise SourceError(f"{what}; leave it out", argument="variables")
        above = root.above()
        # an array of a group that loadax has not finished writing
        if above is not None:
            check_finished(above, f"the group above {root.text}")
        return root.array(driver, "")
    if variables is None:
        names = root.members(metadata)
    elif isinstance(variables, str):
        names = [variables]
    else:
        names = entries("variables", variables, "names of arrays")
    if not names:
        raise SourceError(
            f"{root.text} contains no zarr array or group of arrays; check the path"
        )
    specs = {}
    for name in names:
        member = root.node(f"{name}/")
        if member is None or member[0] is None:
            raise SourceError(
                f"{root.text} has no zarr array {name!r}; its arrays are "
                f"{root.shown(metadata)}"
            )
        specs[name] = root.array(member[0], f"{name}/")
    return specs


def _ragged_arrays(root: "Folder", manifest: dict[str, Any]) -> RaggedArrays:
    arrays: Any = manifest.get("arrays")
    ragged = manifest.get("ragged")
    shard_rows = manifest.get("shard_rows")
    good = (
        isinstance(arrays, dict)
        and isinstance(ragged, list)
        and isinstance(shard_rows, int)
        and shard_rows > 0
    )
    if not (good and ragged and all(name in arrays for name in (LENGTHS, *ragged))):
        raise SourceError(
            f"{root.text}: {FINISHED} is damaged, it describes no ragged rows; copy "
            "it again"
        )
    return RaggedArrays(
        root.text,
        manifest,
        {name: root.array("zarr3", f"{name}/") for name in arrays},
    )


@final
class Folder:
    """A zarr folder, zip file or database: its metadata and arrays."""

    def __init__(self, text: str):
        self.text = text
        self._reading = f"{text} can't be read"
        self._context = new_context(0)
        zipped = text.rstrip("/").endswith(".zip")
        if zipped:
            address = f"{text.rstrip('/')}|zip:"
        else:
            address = text
        path = local_path(text)
        if not zipped and path is not None and path.is_file():
            raise SourceError(
                f"{text} is a file; pass the folder of a zarr array or group, or a "
                ".zip file of one"
            )
        spec = key_value_spec(
            address if address.endswith(("/", ":")) else f"{address}/"
        )
        self.store = self._open(spec)
        self._spec = spec
        if zipped:
            self._local = None
        else:
            self._local = path
        self._check_regular([FINISHED, PARTIAL])
        if (
            not zipped
            and spec["driver"] != "ocdbt"
            and self._ask([_OCDBT])[0].state == "value"
        ):
            spec = {"driver": "ocdbt", "base": spec}
            self.store = self._open(spec)
            self._spec = spec

    def array(self, driver: str, below: str) -> dict[str, Any]:
        """Spec of the array at a path below; "": at this path."""
        return {
            "driver": driver,
            "kvstore": {**self._spec, "path": self._spec.get("path", "") + below},
        }

    def above(self) -> ts.KvStore | None:
        """Opens the parent folder; None at the root."""
        parts = self._spec.get("path", "").rstrip("/").rpartition("/")
        if parts[0]:
            return self._open({**self._spec, "path": parts[0] + parts[1]})
        return None

    def node(self, below: str) -> tuple[str | None, dict[str, Any]] | None:
        """Returns `(driver, metadata)` of a node, with driver None for a group; None if there is no node."""
        keys = [below + key for key, _ in _METADATA]
        answers = self._ask(keys)
        if local_path(self.text) is None and all(
            answer.state != "value" for answer in answers
        ):
            time.sleep(PAUSE)
            # retry: servers sometimes answer "not found" by mistake
            answers = self._ask(keys)
        for key, (_, driver), answer in zip(keys, _METADATA, answers, strict=True):
            if answer.state == "value":
                metadata = json_object(answer.value, f"{self.text.rstrip('/')}/{key}")
                return (
                    None if metadata.get("node_type") == "group" else driver
                ), metadata
        return None

    def members(self, metadata: dict[str, Any]) -> list[str]:
        """Names of a group's arrays, from its consolidated metadata or by listing."""
        consolidated = self._consolidated(metadata)
        if consolidated and "zarr_consolidated_format" not in metadata:
            return sorted(
                name
                for name, node in consolidated.items()
                if node.get("node_type") == "array"
            )
        # of version 2
        if consolidated is not None and "zarr_consolidated_format" in metadata:
            return sorted(
                key.removesuffix("/.zarray")
                for key in consolidated
                if key.endswith("/.zarray")
            )
        try:
            keys = [key.decode() for key in wait(self.store.list(), self._reading)]
        except NotImplementedError as error:
            what = f"{self.text} can't be listed, and has no consolidated metadata"
            remedy = (
                "check the URL, and if it is a group name its arrays in variables=[…]"
            )
            raise SourceError(f"{what}; {remedy}") from redacted(error)
        folders = {
            key.rsplit("/", 1)[0]
            for key in keys
            if key.endswith(("/zarr.json", "/.zarray"))
        }
        return sorted(
            name
            for name in folders
            if (node := self.node(f"{name}/")) is not None and node[0] is not None
        )

    def _consolidated(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the group's consolidated metadata; None if it has none.

        Raises:
            SourceError: When it is not a JSON object of objects.
        """
        second = "zarr_consolidated_format" in metadata
        consolidated: Any
        if second:
            consolidated = metadata
        else:
            consolidated = metadata.get("consolidated_metadata")
        if isinstance(consolidated, dict):
            nodes = consolidated.get("metadata")
        else:
            nodes = consolidated
        if nodes is None and not second:
            return None
        if not isinstance(nodes, dict) or not all(
            isinstance(node, dict) for node in nodes.values()
        ):
            raise SourceError(
                f"{self.text}: its consolidated metadata is damaged: it must be an "
                f"object of objects, not {nodes!r:.60}; copy zarr.json (or "
                ".zmetadata) again, or rewrite it with zarr.consolidate_metadata"
            )
        return nodes

    def shown(self, metadata: dict[str, Any]) -> str:
        """Names of a group's arrays, for a message."""
        try:
            return str(self.members(metadata))
        except SourceError:
            return "not listed"

    def _check_regular(self, keys: Sequence[str]) -> None:
        """Refuses pipes and other special files, on which TensorStore would block."""
        for path in (
            [self._local / key for key in keys] if self._local is not None else ()
        ):
            if path.exists() and not path.is_file():
                raise SourceError(
                    f"{path} is not a regular file; delete it, or copy the store "
                    "again"
                )

    def _open(self, spec: dict[str, Any]) -> ts.KvStore:
        return wait(ts.KvStore.open(spec, context=self._context), self._reading)

    def _ask(self, keys: list[str]) -> list[Any]:
        """Reads some small objects concurrently."""
        self._check_regular(keys)
        if self._spec.get("driver") == "zip":
            # TensorStore 0.1.86 sometimes hangs on one of two concurrent reads of a zip file that does not exist.
            return [wait(self.store.read(key), self._reading) for key in keys]
        under_way = [self.store.read(key) for key in keys]
        return [wait(answer, self._reading) for answer in under_way]
