"""Destination: a folder that becomes a zarr store, with marker files for its progress.

- `loadax.partial.json` is written first and describes the contents; a resumed write compares it with its own.
- `zarr.json` and the shards are the group and the arrays.
- `loadax.part-0-of-4.json`: one of several processes is done.
- `loadax.json` is written last, once all parts are complete; the other markers are then deleted.

A store that is overwritten stays until the new one is complete: that is written next to it as `.name.<token>.new` and
then swapped in, by two renames on a file system, or by copying on object stores. Only files of the store itself are
ever deleted.
"""

import json
import logging
import os
import secrets
from pathlib import Path
from typing import Any, final

import tensorstore as ts

from loadax.core.arguments import path as checked_path
from loadax.errors import ArgumentError, SourceError
from loadax.redaction import redact, redacted
from loadax.sources.base import Attributes
from loadax.sources.io.index_folder import FILES, differs
from loadax.sources.io.kvstore import key_value_spec, new_context, wait
from loadax.sources.io.paths import local_path
from loadax.sources.zarr.manifest import FINISHED, PARTIAL, VERSION, read_marker
from loadax.writing.layout import Layout
from loadax.writing.names import array_label
from loadax.writing.own_files import delete_own, foreign_keys, keys_below, own_keys
from loadax.writing.replacement import copy_objects, swap_folders

_ZARR = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")  # the folder of any zarr array or group has one of them
_PART, _AFTER_PARTS = "loadax.part-", "loadax.part."  # key range of the processes' markers: "." follows "-"
_DELETING = {"version": VERSION, "deleting": True}
_MEANT = {
    f"data.{FILES}": " (the locations, sizes and times of change of the files that are read)",
    "data.functions": " (functions are compared by their code and the values that they use)",
}
_SHOWN = 200  # characters of a value in a message
_NAMED = 3  # foreign files in a message

_log = logging.getLogger("loadax")

Share = tuple[int, int]
"""`(i, n)`: process i of n."""


@final
class Destination:
    """A folder, local or remote, that becomes a zarr store.

    Args:
        path: Local path or writable URL.
        shown: Name in messages; None: `path`.

    Raises:
        ArgumentError: When it is a file, or not a path.
        SourceError: When the kind of URL is unknown.
    """

    def __init__(self, path: str | os.PathLike[str], shown: str | None = None):
        self._path = checked_path("path", path, "the path or URL of a folder to write to")
        self.location = redact(self._path if shown is None else shown)
        self.local = local_path(path)
        if self.local is not None and self.local.exists() and not self.local.is_dir():
            raise ArgumentError(f"{self.location} is a file; pass the path of a new folder")
        # No cache: nothing is read twice.
        self._context = new_context(0)
        folder = self._path if self._path.endswith("/") else f"{self._path}/"
        self.store: ts.KvStore = wait(ts.KvStore.open(key_value_spec(folder), context=self._context), self.location)

    def begin(
        self, content: dict[str, Any], *, resume: bool, overwrite: bool, share: Share | None
    ) -> "Destination | None":
        """Prepares the destination for a store.

        Args:
            content: Description of the store's contents, as JSON.
            resume: Whether to resume an unfinished store.
            overwrite: Whether to replace an existing store.
            share: `(i, n)` of concurrent processes, which join a store that another one has begun; None: one process.

        Returns:
            This destination, or a temporary one next to the store that will be replaced; None if the store is finished.

        Raises:
            ArgumentError: When the destination is occupied and neither option allows to use it, its store has other
                contents, or it contains foreign files.
        """
        # In this order, because another process may meanwhile write marker, arrays and manifest and delete the marker.
        occupied, partial, manifest = self._occupied(), self._marker(PARTIAL), self._marker(FINISHED)
        if overwrite:
            if manifest is not None or (partial is None and self._is_zarr()):
                self._check_own(manifest)
                return self._beside(content)
            if partial is not None:
                self._check_own(partial)
                self._delete(partial)
            elif occupied:
                raise ArgumentError(
                    f"{self.location}: overwrite=True deletes only zarr stores, and this is not one; "
                    "choose another path, or delete it yourself"
                )
        elif manifest is not None:
            if not resume:
                raise ArgumentError(
                    f"{self.location} is a finished store of {manifest.get('rows')} rows; "
                    "pass overwrite=True to replace it",
                    argument="overwrite",
                )
            self._compare(manifest, content, share)
            if partial is not None:  # the process that finished it was stopped before the cleanup
                self._tidy()
            return None
        elif partial is not None:
            if not resume and share is None:
                raise ArgumentError(
                    f"{self.location} is an unfinished store; "
                    "pass resume=True to resume it, or overwrite=True to start over",
                    argument="resume",
                )
            self._compare(partial, content, share)
            return self
        elif occupied:
            raise ArgumentError(
                f"{self.location} is not empty and not a store of loadax; choose another path, or pass "
                "overwrite=True to delete it if it is a zarr store",
                argument="overwrite",
            )
        self._write(PARTIAL, content)
        return self

    def create(self, layout: Layout, attributes: Attributes) -> list[ts.TensorStore]:
        """Opens the arrays of the store, in leaf order, and creates missing ones with their attributes."""
        opening = []
        for array in layout.arrays:
            spec = {
                "driver": "zarr3",
                "metadata": {**layout.metadata(array), "attributes": dict(attributes.get(array.name, {}))},
                "store_data_equal_to_fill_value": True,  # so that a missing chunk is always an error
                "fill_missing_data_reads": False,
            }
            folder = self.store / f"{array.name}/" if array.name else self.store
            opening.append(ts.open(spec, kvstore=folder, context=self._context, create=True, open=True))
        names = [array.name for array in layout.arrays]
        arrays = [wait(future, array_label(self.location, name)) for future, name in zip(opening, names, strict=True)]
        if names != [""]:
            self._write("zarr.json", self._group(names))
        return arrays

    def finish(self, content: dict[str, Any], share: Share | None) -> bool:
        """Marks this process as done and returns whether the store is complete."""
        index, count = share or (0, 1)
        markers = [f"{_PART}{process}-of-{count}.json" for process in range(count)]
        if count > 1:
            self._write(markers[index], {"version": VERSION})
            if any(self._marker(name) is None for name in markers):
                # Either others are not done, or one of them has already found all markers and written the manifest.
                return self._marker(FINISHED) is not None
        self._write(FINISHED, content)  # several processes may find all markers: they write the same
        self._tidy()
        return True

    def replace(self, new: "Destination", content: dict[str, Any]) -> None:
        """Replaces this store by a complete one from `begin`.

        Raises:
            ArgumentError: When foreign files have appeared in the store.
            SourceError: When the replacement fails; says where the new store is.
        """
        try:
            self._check_still_own()
            if self.local is None:
                self._copy(new, content)
            else:
                self._swap(new)
        except BaseException as error:
            error.add_note(
                f"loadax: the new store is complete at {new.address}; move it to its destination, or delete it"
            )
            raise

    def discard(self) -> None:
        """Deletes this temporary store."""
        if self.local is not None:
            delete_own(self.local, own_keys(self.contents(), None))
        else:
            wait(self.store.delete_range(ts.KvStore.KeyRange()), self.location)

    @property
    def address(self) -> str:
        """Actual path or URL, which may differ from `location`."""
        return self._path

    def _marker(self, name: str) -> dict[str, Any] | None:
        return read_marker(self.store, name, self.location)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        try:
            wait(self.store.write(name, json.dumps(content, indent=1).encode()), f"{self.location}: {name}")
        except NotImplementedError as error:
            raise ArgumentError(
                f"{self.location} can't be written to ({error}); pass a local path, or an s3:// or gs:// URL"
            ) from redacted(error)

    def _erase(self, name: str) -> None:
        wait(self.store.write(name, None), f"{self.location}: {name}")

    def _tidy(self) -> None:
        wait(self.store.delete_range(ts.KvStore.KeyRange(_PART, _AFTER_PARTS)), self.location)
        self._erase(PARTIAL)

    def _occupied(self) -> bool:
        """Whether the folder contains anything but markers of loadax, which a killed process may leave behind."""
        if self.local is None:
            return self._is_zarr()
        return self.local.exists() and any(not entry.name.startswith("loadax.") for entry in self.local.iterdir())

    def _is_zarr(self) -> bool:
        return any(wait(self.store.read(name), self.location).state == "value" for name in _ZARR)

    def contents(self) -> list[str]:
        """Keys of all files, including markers."""
        if self.local is not None:
            return keys_below(self.local)
        try:
            return [key.decode("utf-8", "replace") for key in wait(self.store.list(), self.location)]
        except NotImplementedError as error:
            raise ArgumentError(
                f"{self.location} can't be listed ({error}), so it can't be overwritten; choose another path"
            ) from error

    def _check_own(self, content: dict[str, Any] | None) -> None:
        """Checks that the folder has no foreign files, which must not be deleted."""
        foreign = foreign_keys(self.contents(), _array_names(content))
        if foreign:
            more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
            raise ArgumentError(
                f"{self.location}: overwrite=True would delete files that don't belong to the store: "
                f"{', '.join(foreign[:_NAMED])}{more}; move them elsewhere, or choose another path"
            )

    def _check_still_own(self) -> None:
        while True:
            manifest = self._marker(FINISHED)
            try:
                return self._check_own(manifest)
            except ArgumentError:
                if self._marker(FINISHED) == manifest:
                    raise
                # Another process replaced the store while its files were listed.

    def _beside(self, content: dict[str, Any]) -> "Destination":
        """Creates the temporary destination of the store that will replace this one."""
        token = secrets.token_hex(4)
        if self.local is not None:
            real = Path(os.path.realpath(self.local))
            if os.path.ismount(real):
                raise ArgumentError(
                    f"{self.location} is a mount point, which can't be replaced by a rename; write to a folder "
                    "in it, or delete the store first"
                )
            beside = Destination(real.with_name(f".{real.name[:200]}.{token}.new"), self.location)
        else:
            spec = key_value_spec(self._path)
            name = spec.get("path", "").strip("/")
            if not name:
                raise ArgumentError(
                    f"{self.location} is a whole bucket, so the new store can't be written next to it; "
                    "write to a folder in it, or delete the store first"
                )
            beside = Destination(f"{self._path.rstrip('/')}.{token}.new", self.location)
        beside._write(PARTIAL, content)
        return beside

    def _swap(self, new: "Destination") -> None:
        assert self.local is not None
        assert new.local is not None
        try:
            moved = swap_folders(Path(os.path.realpath(self.local)), new.local)
        except OSError as error:
            raise SourceError(f"{self.location}: the old store can't be replaced by the new one: {error}") from error
        for old in moved:
            # another process may have written this one
            manifest = read_marker(Destination(old).store, FINISHED, str(old))
            if not delete_own(old, own_keys(keys_below(old), _array_names(manifest))):
                _log.warning("%s: files that appeared during the overwrite were moved to %s", self.location, old)

    def _copy(self, new: "Destination", content: dict[str, Any]) -> None:
        """Replaces a remote store by copying; an interrupted copy counts as unfinished and can be resumed."""
        self._delete(None)
        self._write(PARTIAL, content)
        copy_objects(
            new.store, self.store, [key for key in new.contents() if key not in (PARTIAL, FINISHED)], self.location
        )
        self._write(FINISHED, content)
        self._tidy()
        new.discard()

    def _delete(self, content: dict[str, Any] | None) -> None:
        """Deletes the old store in an order in which it never counts as complete or resumable."""
        self._write(PARTIAL, _DELETING)
        self._erase(FINISHED)
        if self.local is not None:
            delete_own(self.local, [key for key in own_keys(self.contents(), _array_names(content)) if key != PARTIAL])
            return
        below = ts.KvStore.KeyRange("", PARTIAL), ts.KvStore.KeyRange(f"{PARTIAL}\0", "")
        for keys in below:
            wait(self.store.delete_range(keys), self.location)

    def _compare(self, stored: dict[str, Any], content: dict[str, Any], share: Share | None) -> None:
        if stored == _DELETING:
            raise ArgumentError(
                f"{self.location}: its deletion was interrupted; pass overwrite=True to start over",
                argument="overwrite",
            )
        difference = _difference(stored, content if share is None else _without_files(content), "")
        if difference:
            field, old, new = difference
            raise ArgumentError(
                f"{self.location} was started with {field} = {_shown(old)}, but now it is {_shown(new)}"
                f"{_MEANT.get(field, '')}; "
                "resume with the same data and arguments, or pass overwrite=True to start over",
                argument="overwrite",
            )

    def _group(self, names: list[str]) -> dict[str, Any]:
        """Group metadata with consolidated metadata of its arrays, for servers that can't list folders."""
        answers = [
            (name, wait(self.store.read(f"{name}/zarr.json"), array_label(self.location, name))) for name in names
        ]
        members = {name: json.loads(answer.value) for name, answer in answers}
        consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
        return {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": consolidated}


def _array_names(content: dict[str, Any] | None) -> list[str] | None:
    """Names of a store's arrays from its marker; None if unknown."""
    arrays = (content or {}).get("arrays")
    return list(arrays) if isinstance(arrays, dict) else None


def _without_files(content: dict[str, Any]) -> dict[str, Any]:
    """Drops the fingerprint of the files, since other processes may read copies with other modification times."""
    data = content.get("data")
    return {**content, "data": {**data, FILES: None}} if isinstance(data, dict) else content


def _difference(old: Any, new: Any, field: str) -> tuple[str, Any, Any] | None:
    """Returns the first field in which two JSON values differ, with both values; None if they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*new, *old]):
            if not differs(old.get(key), new.get(key), key):
                continue
            nested = _difference(old.get(key), new.get(key), f"{field}.{key}" if field else key)
            if nested:
                return nested
        return None
    return None if old == new else (field, old, new)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
