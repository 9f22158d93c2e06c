"""Where a store is written: what may stand there already, its arrays, and the marker files that say how far it is.

- `loadax.partial.json` is written first: what the store will hold. Who goes on with a store compares it with what he
  has.
- `zarr.json` and the shards: the group and the arrays.
- `loadax.part-0-of-4.json`: a process of several is done.
- `loadax.json` is written last, once all parts are there; the other markers go then.

A whole store that is to be overwritten stays until the new one is whole: that is written beside it,
`.name.<token>.new`, and then takes its place: by two renames on a file system, by copying where there are none (object
stores). Only files of the store itself are ever deleted.
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
from loadax.sources.io.kvstore import key_value_spec, new_context, wait
from loadax.sources.io.paths import local_path
from loadax.sources.zarr.manifest import FINISHED, PARTIAL, VERSION, read_marker
from loadax.writing.identity import FILES, differs
from loadax.writing.layout import Layout
from loadax.writing.names import array_label
from loadax.writing.own_files import delete_own, foreign_keys, keys_below, own_keys
from loadax.writing.replacement import copy_objects, swap_folders

_ZARR = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")  # one of them stands in the folder of any zarr array or group
# how the markers of single processes begin; a dot follows the hyphen
_PART, _AFTER_PARTS = "loadax.part-", "loadax.part."
_DELETING = {"version": VERSION, "deleting": True}
_MEANT = {
    f"data.{FILES}": " (the names, sizes and times of change of the files that are read)",
    "data.functions": " (a function counts by its code and the values that it uses)",
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
        path: a local path or a URL that can be written to.
        shown: what messages call it; None: `path`.

    Raises:
        ArgumentError: when it is a file, or no path at all.
        SourceError: when it is a URL of an unknown kind.
    """

    def __init__(self, path: str | os.PathLike[str], shown: str | None = None):
        self._path = checked_path("path", path, "the path or URL of a folder to write to")
        self.location = redact(self._path if shown is None else shown)
        self.local = local_path(path)
        if self.local is not None and self.local.exists() and not self.local.is_dir():
            raise ArgumentError(f"{self.location} is a file; pass the path of a folder that is not there yet")
        # Nothing that is written or checked is read twice.
        self._context = new_context(0)
        folder = self._path if self._path.endswith("/") else f"{self._path}/"
        self.store: ts.KvStore = wait(ts.KvStore.open(key_value_spec(folder), context=self._context), self.location)

    def begin(
        self, content: dict[str, Any], *, resume: bool, overwrite: bool, share: Share | None
    ) -> "Destination | None":
        """Makes a place ready for a store that holds `content`.

        This one, or one beside the store that will be replaced; None when all is there.

        Args:
            content: what the store will hold, as JSON.
            resume: whether to go on with what stands there.
            overwrite: whether to replace what stands there.
            share: of several processes that write side by side, if so: one joins what another one has begun.

        Raises:
            ArgumentError: when something stands there and neither may be done, it is something else than `content`, or
                files that are not the store's own lie in it.
        """
        # In this order: what another process does meanwhile (marker, arrays, manifest, marker gone) is then never met
        # half-way.
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
                    f"{self.location}: overwrite=True deletes zarr stores, but this is none; "
                    "choose another path, or delete it yourself"
                )
        elif manifest is not None:
            if not resume:
                raise ArgumentError(
                    f"{self.location}: a finished store of {manifest.get('rows')} rows is there; "
                    "pass overwrite=True to replace it",
                    argument="overwrite",
                )
            self._compare(manifest, content, share)
            if partial is not None:  # whoever finished it was stopped before he had tidied up
                self._tidy()
            return None
        elif partial is not None:
            if not resume and share is None:
                raise ArgumentError(
                    f"{self.location}: a store that was not written to its end is there; "
                    "pass resume=True to go on with it, or overwrite=True to begin anew",
                    argument="resume",
                )
            self._compare(partial, content, share)
            return self
        elif occupied:
            raise ArgumentError(
                f"{self.location}: there is something that loadax did not begin to write; choose another path, or pass "
                "overwrite=True to delete it if it is a zarr store",
                argument="overwrite",
            )
        self._write(PARTIAL, content)
        return self

    def create(self, layout: Layout) -> list[ts.TensorStore]:
        """The arrays of a store, in leaf order, created where they are not there yet."""
        opening = []
        for array in layout.arrays:
            spec = {
                "driver": "zarr3",
                "metadata": layout.metadata(array),
                "store_data_equal_to_fill_value": True,  # so that a chunk that is missing was lost, never left out
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
        """Says that this process has written all that it had to; True when the store is whole now."""
        index, count = share or (0, 1)
        markers = [f"{_PART}{process}-of-{count}.json" for process in range(count)]
        if count > 1:
            self._write(markers[index], {"version": VERSION})
            if any(self._marker(name) is None for name in markers):
                # Either others are not done, or one of them has found all and written the manifest already.
                return self._marker(FINISHED) is not None
        self._write(FINISHED, content)  # the same from whoever finds all markers
        self._tidy()
        return True

    def replace(self, new: "Destination", content: dict[str, Any]) -> None:
        """Puts a whole store, which `begin` had made room for beside this one, in the place of this one.

        Raises:
            ArgumentError: when files that are not the store's own have appeared in it.
            SourceError: when it can't be done; says where the new store is.
        """
        try:
            self._check_still_own()
            if self.local is None:
                self._copy(new, content)
            else:
                self._swap(new)
        except BaseException as error:
            error.add_note(
                f"loadax: the new store is whole, and lies at {new.address}; move it where it belongs, or delete it"
            )
            raise

    def discard(self) -> None:
        """Deletes what was written beside a store that was to be replaced."""
        if self.local is not None:
            delete_own(self.local, own_keys(self.contents(), None))
        else:
            wait(self.store.delete_range(ts.KvStore.KeyRange()), self.location)

    @property
    def address(self) -> str:
        """Where it lies, whatever messages call it."""
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
        """Whether there is anything that stands in the way; half a marker, of a process that was killed, does not."""
        if self.local is None:
            return self._is_zarr()
        return self.local.exists() and any(not entry.name.startswith("loadax.") for entry in self.local.iterdir())

    def _is_zarr(self) -> bool:
        return any(wait(self.store.read(name), self.location).state == "value" for name in _ZARR)

    def contents(self) -> list[str]:
        """The keys of everything that lies there, markers too."""
        if self.local is not None:
            return keys_below(self.local)
        try:
            return [key.decode("utf-8", "replace") for key in wait(self.store.list(), self.location)]
        except NotImplementedError as error:
            raise ArgumentError(
                f"{self.location} can't be listed ({error}), so it can't be overwritten; choose another path"
            ) from error

    def _check_own(self, content: dict[str, Any] | None) -> None:
        """Refuses to delete what is not the store's own."""
        foreign = foreign_keys(self.contents(), _array_names(content))
        if foreign:
            more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
            raise ArgumentError(
                f"{self.location}: overwrite=True would delete files that are not the store's own: "
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
                # Another process has replaced the store while its files were listed.

    def _beside(self, content: dict[str, Any]) -> "Destination":
        """The place where a store is written that will replace this one."""
        token = secrets.token_hex(4)
        if self.local is not None:
            real = Path(os.path.realpath(self.local))
            if os.path.ismount(real):
                raise ArgumentError(
                    f"{self.location}: it is a mount point, so another folder can't take its place; write to a folder "
                    "in it, or delete the store first"
                )
            beside = Destination(real.with_name(f".{real.name[:200]}.{token}.new"), self.location)
        else:
            spec = key_value_spec(self._path)
            name = spec.get("path", "").strip("/")
            if not name:
                raise ArgumentError(
                    f"{self.location}: it is all of its bucket, so there is no place beside it for the new store; "
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
            raise SourceError(f"{self.location}: the new store can't take the place of the old one: {error}") from error
        for old in moved:
            # another process may have put this one there
            manifest = read_marker(Destination(old).store, FINISHED, str(old))
            if not delete_own(old, own_keys(keys_below(old), _array_names(manifest))):
                _log.warning("%s: files that appeared while the store was overwritten lie in %s", self.location, old)

    def _copy(self, new: "Destination", content: dict[str, Any]) -> None:
        """As near to a rename as object stores come.

        What is interrupted in between is not taken for whole, and can be gone on with.
        """
        self._delete(None)
        self._write(PARTIAL, content)
        copy_objects(
            new.store, self.store, [key for key in new.contents() if key not in (PARTIAL, FINISHED)], self.location
        )
        self._write(FINISHED, content)
        self._tidy()
        new.discard()

    def _delete(self, content: dict[str, Any] | None) -> None:
        """Deletes the store that stands there, in such an order that it is never taken for whole, nor gone on with."""
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
                f"{self.location}: it was about to be deleted; pass overwrite=True to begin anew", argument="overwrite"
            )
        difference = _difference(stored, content if share is None else _without_files(content), "")
        if difference:
            field, old, new = difference
            raise ArgumentError(
                f"{self.location}: it was begun with {field} = {_shown(old)}, now it is {_shown(new)}"
                f"{_MEANT.get(field, '')}; "
                "go on with the same data and arguments, or pass overwrite=True to begin anew",
                argument="overwrite",
            )

    def _group(self, names: list[str]) -> dict[str, Any]:
        """The node of the group.

        It repeats its arrays' metadata, so that they are found where folders can't be listed.
        """
        answers = [
            (name, wait(self.store.read(f"{name}/zarr.json"), array_label(self.location, name))) for name in names
        ]
        members = {name: json.loads(answer.value) for name, answer in answers}
        consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
        return {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": consolidated}


def _array_names(content: dict[str, Any] | None) -> list[str] | None:
    """The names of a store's arrays, when its marker tells them."""
    arrays = (content or {}).get("arrays")
    return list(arrays) if isinstance(arrays, dict) else None


def _without_files(content: dict[str, Any]) -> dict[str, Any]:
    """What is to be written, for a process that shares the work.

    Others may have copies of the data, of another time.
    """
    data = content.get("data")
    return {**content, "data": {**data, FILES: None}} if isinstance(data, dict) else content


def _difference(old: Any, new: Any, field: str) -> tuple[str, Any, Any] | None:
    """The first field in which two JSON values differ, and both its values."""
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
