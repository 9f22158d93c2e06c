"""Finds the zarr arrays under a path, since TensorStore opens arrays but not groups."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import tensorstore as ts

from loadax.core.arguments import entries, path as checked_path
from loadax.errors import SourceError, StorageError
from loadax.files.kvstore import key_value_spec, new_context, wait
from loadax.files.opened import PAGE, count_checks, count_requests
from loadax.files.paths import local_path
from loadax.redaction import redacted
from loadax.sources.zarr.array import PAUSE
from loadax.sources.zarr.manifest import check_finished, json_object
from loadax.sources.zarr.names import FINISHED, LENGTHS, PARTIAL, RAGGED

if TYPE_CHECKING:
    from loadax.files.metadata import Metadata

_ARRAY_METADATA = {"zarr.json": "zarr3", ".zarray": "zarr"}
_METADATA = {**_ARRAY_METADATA, ".zmetadata": None, ".zgroup": None}
# marks a folder as an OCDBT database, which stores many small objects in few files
_OCDBT = "manifest.ocdbt"
_MARKERS = (FINISHED, PARTIAL)
# kinds of questions of `Metadata`
_OBJECT = "object"
_GENERATION = "generation"


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


def find_arrays(
    path: Any,
    variables: Sequence[str] | str | None,
    metadata: "Metadata | None" = None,
) -> Any:
    """Returns the TensorStore spec of the array at `path`, or a dict of specs for a group; or `RaggedArrays`.

    Args:
        path: Path or URL of a folder, a `.zip` file or an OCDBT database.
        variables: Names of the group's arrays to open; None: all.
        metadata: What is known of a remote store; None: nothing.
    """
    text = checked_path("path", path, "the path or URL of a zarr array or group")
    if variables is None:
        names = None
    elif isinstance(variables, str):
        names = [variables]
    else:
        names = list(entries("variables", variables, "names of arrays"))
    root = Folder(text, names, metadata)
    try:
        return _arrays_of(root, names)
    except StorageError:  # refused, or without an answer
        raise
    except SourceError:
        # servers sometimes answer "not found" by mistake
        if not root.forgets_absent():
            raise
        return _arrays_of(root, names)


def _arrays_of(root: "Folder", names: Sequence[str] | None) -> Any:
    manifest = root.manifest()
    if manifest is not None and manifest["version"] == RAGGED:
        return _ragged_arrays(root, manifest)
    nodes = root.arrays(names or ())
    if names and None not in nodes.values():
        return root.specs(nodes)
    # TensorStore writes arrays but no groups, so a folder of arrays counts as one.
    node = root.node()
    if node is not None and node.driver is not None:
        if names is not None:
            what = (
                f"{root.text} is an array, not a group, so variables={names!r} "
                "does not apply"
            )
            raise SourceError(f"{what}; leave it out", argument="variables")
        # an array of a group that loadax has not finished writing
        check_finished(root.above(), f"the group above {root.text}")
        return root.array("", node)
    if names is None:
        nodes = root.members(node)
    if not nodes:
        raise SourceError(
            f"{root.text} contains no zarr array or group of arrays; check the path"
        )
    for name, member in nodes.items():
        if member is None:
            raise SourceError(
                f"{root.text} has no zarr array {name!r}; its arrays are "
                f"{root.shown(node)}"
            )
    return root.specs(nodes)


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
        root.specs(root.arrays(arrays, ["zarr.json"])),
    )


class Node(NamedTuple):
    """An array or a group.

    Args:
        driver: Driver of an array; None: it is a group.
        metadata: Content of its metadata.
    """

    driver: str | None
    metadata: dict[str, Any]


@final
class Folder:
    """A zarr folder, zip file or database: its metadata and arrays.

    Opening it asks for all that may be needed next, in one round of requests; what is known is not asked again.

    Args:
        text: Path or URL.
        names: Names of the arrays that will be opened; None: not known yet.
        metadata: What is known of a remote store; None: nothing.
    """

    def __init__(
        self,
        text: str,
        names: Sequence[str] | None = None,
        metadata: "Metadata | None" = None,
    ):
        self.text = text
        self._compared: set[str] = set()
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
        if zipped:
            self._local = None
            self._metadata = None
        else:
            self._local = path
            self._metadata = metadata
        self._open(spec, f"{text.rstrip('/')}/")
        if names is None:
            first = [FINISHED, PARTIAL, *_METADATA]
        else:
            first = [FINISHED, PARTIAL, *_keys(names, _ARRAY_METADATA)]
        if zipped or spec["driver"] == "ocdbt":
            self._read(first)
        elif self._read([_OCDBT, *first])[0] is not None:
            inner = f"{text.rstrip('/')}|{_OCDBT}/"
            self._open({"driver": "ocdbt", "base": spec}, inner)
            self._read(first)

    def array(self, below: str, node: Node | None = None) -> dict[str, Any]:
        """Spec of the array at a path below; "": at this path. With its node, opening it reads nothing."""
        kvstore = {**self._spec, "path": self._spec.get("path", "") + below}
        if node is None:
            return {"driver": "zarr3", "kvstore": kvstore}
        plain = {"driver": node.driver, "kvstore": kvstore}
        metadata = {**node.metadata}
        metadata.pop("consolidated_metadata", None)
        known = {**plain, "metadata": metadata, "assume_metadata": True}
        try:
            ts.Spec(known)
        except (ValueError, RuntimeError):  # opening it will say why
            return plain
        return known

    def specs(self, nodes: Mapping[str, Node | None]) -> dict[str, Any]:
        """Specs of the arrays below by name; that of an array without metadata is refused when it is opened."""
        return {name: self.array(f"{name}/", node) for name, node in nodes.items()}

    def markers(self) -> dict[str, bytes | None]:
        """Contents of the markers of loadax, by name."""
        return dict(zip(_MARKERS, self._read(_MARKERS), strict=True))

    def manifest(self) -> dict[str, Any] | None:
        """Manifest of a finished store; None for a store of another writer.

        Raises:
            SourceError: When the store is unfinished, or was written by a newer loadax.
        """
        return check_finished(self.markers(), self.text)

    def above(self) -> dict[str, bytes | None]:
        """Contents of the markers in the folder above, by name."""
        parent = self._spec.get("path", "").rstrip("/").rpartition("/")[0]
        if not parent:
            return {}
        store = self._store_of({**self._spec, "path": f"{parent}/"})
        root = f"{self._root.rstrip('/')}|above/"
        return dict(zip(_MARKERS, self._recall(store, root, _MARKERS), strict=True))

    def node(self) -> Node | None:
        """The node at this path; None if there is none."""
        return self._node("", list(_METADATA))

    def arrays(
        self, names: Sequence[str], keys: Sequence[str] = tuple(_ARRAY_METADATA)
    ) -> dict[str, Node | None]:
        """The arrays of these names, None for one that is not there; their metadata is read in one round."""
        self._read(_keys(names, keys))
        nodes = {name: self._node(f"{name}/", keys) for name in names}
        return {
            name: node if node is not None and node.driver is not None else None
            for name, node in nodes.items()
        }

    def members(self, node: Node | None) -> dict[str, Node | None]:
        """The arrays of a group, by the names in its consolidated metadata, or by listing."""
        metadata: dict[str, Any] = {} if node is None else node.metadata
        consolidated = self._consolidated(metadata)
        if consolidated is None:
            return self._listed()
        if "zarr_consolidated_format" in metadata:  # of version 2
            names = [
                key.removesuffix("/.zarray")
                for key in consolidated
                if key.endswith("/.zarray")
            ]
            return self.arrays(sorted(names), [".zarray"])
        names = [
            name
            for name, member in consolidated.items()
            if member.get("node_type") == "array"
        ]
        return self.arrays(sorted(names), ["zarr.json"])

    def forgets_absent(self) -> bool:
        """Waits, and has what a server did not find asked for again; False for a local folder."""
        if local_path(self.text) is not None:
            return False
        time.sleep(PAUSE)
        absent = [key for key, value in self._known.items() if value is None]
        for key in absent:
            del self._known[key]
        return True

    def _listed(self) -> dict[str, Node | None]:
        try:
            listed = [key.decode() for key in wait(self._store.list(), self._reading)]
            pages = 1 + len(listed) // PAGE
            count_requests(pages)
            count_checks(pages)
        except NotImplementedError as error:
            what = f"{self.text} can't be listed, and has no consolidated metadata"
            remedy = (
                "check the URL, and if it is a group name its arrays in variables=[…]"
            )
            raise SourceError(f"{what}; {remedy}") from redacted(error)
        keys = [key for key in listed if key.endswith(("/zarr.json", "/.zarray"))]
        self._read(keys)
        names = sorted({key.rpartition("/")[0] for key in keys})
        nodes = {
            name: self._node(f"{name}/", list(_ARRAY_METADATA)) for name in names
        }
        return {
            name: node
            for name, node in nodes.items()
            if node is not None and node.driver is not None
        }

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

    def shown(self, node: Node | None) -> str:
        """Names of a group's arrays, for a message."""
        try:
            return str(list(self.members(node)))
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

    def _open(self, spec: dict[str, Any], root: str) -> None:
        self._spec = spec
        self._root = root
        self._store = self._store_of(spec)
        self._known: dict[str, bytes | None] = {}

    def _store_of(self, spec: dict[str, Any]) -> ts.KvStore:
        return wait(ts.KvStore.open(spec, context=self._context), self._reading)

    def _node(self, below: str, keys: Sequence[str]) -> Node | None:
        """The node at a path below, by these names of metadata."""
        contents = self._read([below + key for key in keys])
        for key, content in zip(keys, contents, strict=True):
            if content is not None:
                location = f"{self.text.rstrip('/')}/{below}{key}"
                metadata = json_object(content, location)
                is_group = metadata.get("node_type") == "group"
                return Node(None if is_group else _METADATA[key], metadata)
        return None

    def _read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Contents of small objects, None for one that does not exist; asks for those that are not known."""
        new = [key for key in dict.fromkeys(keys) if key not in self._known]
        found = self._recall(self._store, self._root, new)
        self._known.update(zip(new, found, strict=True))
        return [self._known[key] for key in keys]

    def _recall(
        self, store: ts.KvStore, root: str, keys: Sequence[str]
    ) -> list[bytes | None]:
        """Contents of objects, from the metadata as far as it has those of today."""
        metadata = self._metadata
        if metadata is None or not keys:
            return [_content(answer) for answer in self._ask(store, keys)]
        known = metadata.kept(_OBJECT, root)
        is_first = root not in self._compared
        self._compared.add(root)
        if known and is_first and not metadata.is_current:
            generations = metadata.kept(_GENERATION, root)
            there = _compared(root, known)
            if not self._are_current(store, root, there, generations):
                metadata.forget(_OBJECT, known)
                metadata.forget(_GENERATION, generations)
        urls = [root + key for key in keys]
        asked: dict[str, Any] = {}

        def ask(new: list[str]) -> list[bytes | None]:
            answers = self._ask(store, [url.removeprefix(root) for url in new])
            asked.update(zip(new, answers, strict=True))
            return list(map(_content, answers))

        contents = metadata.recall(_OBJECT, urls, ask)
        told = dict(zip(urls, contents, strict=True))
        compared = _compared(root, {**metadata.kept(_OBJECT, root), **told})
        count_checks(len(told.keys() & compared))
        metadata.recall(
            _GENERATION,
            [*asked],
            lambda new: [asked[url].stamp.generation for url in new],
        )
        return contents

    def _are_current(
        self,
        store: ts.KvStore,
        root: str,
        urls: Sequence[str],
        generations: Mapping[str, bytes],
    ) -> bool:
        """Whether objects still have the generations of their known contents."""
        count_requests(len(urls))
        under_way = [
            store.read(url.removeprefix(root), if_not_equal=generations.get(url))
            for url in urls
        ]
        answers = [wait(answer, self._reading) for answer in under_way]
        # a server may ignore the condition
        return all(
            answer.state == "unspecified"
            or answer.stamp.generation == generations.get(url)
            for url, answer in zip(urls, answers, strict=True)
        )

    def _ask(self, store: ts.KvStore, keys: Sequence[str]) -> list[Any]:
        """Reads some small objects concurrently."""
        self._check_regular(keys)
        if self._spec.get("driver") == "zip":
            # TensorStore 0.1.86 sometimes hangs on one of two concurrent reads of a zip file that does not exist.
            return [wait(store.read(key), self._reading) for key in keys]
        under_way = [store.read(key) for key in keys]
        answers = [wait(answer, self._reading) for answer in under_way]
        nbytes = sum(len(answer.value) for answer in answers if answer.value)
        count_requests(len(keys), nbytes)
        return answers


def _compared(root: str, known: Mapping[str, bytes | None]) -> list[str]:
    """URLs of the objects that tell whether what is known of a store is that of today.

    The manifest of loadax describes all arrays. Other writers let an array grow without a change of the group's
    metadata, so that of each array is compared.
    """
    finished = root + FINISHED
    if known.get(finished) is not None:
        return [finished]
    return [url for url, content in known.items() if content is not None]


def _content(answer: Any) -> bytes | None:
    if answer.state != "value":
        return None
    content: bytes = answer.value
    return content


def _keys(names: Sequence[str], keys: Iterable[str]) -> list[str]:
    return [f"{name}/{key}" for name in names for key in keys]
