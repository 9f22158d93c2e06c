"""Destination: a folder that becomes a zarr store, with marker files for its progress.

- `loadax.partial.json` is written first and describes the contents; a resumed write compares it with its own.
- `zarr.json` and the shards are the group and the arrays.
- `loadax.parts/`: which parts of a local store are finished, and which processes work on the others.
- `loadax.part-0-of-4.json`: one of several processes, each of which writes a share, is done.
- `loadax.json` is written last, once all parts are complete; the other markers are then deleted.

A store that is overwritten stays until the new one is complete: that is written next to it, in a folder whose name
begins with `.name.loadax-`, and takes its name by two renames. Only a store that loadax wrote is ever deleted.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait as wait_for
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, final

import tensorstore as ts

from loadax.core.arguments import path as checked_path
from loadax.core.formatting import some
from loadax.core.log import log
from loadax.errors import ArgumentError, SourceError
from loadax.files.kept_files import BESIDE, left_behind, temporary_file
from loadax.files.kvstore import key_value_spec, new_context, wait
from loadax.files.paths import local_path
from loadax.kept.index_folder import FILES, INNER, differs
from loadax.redaction import redact, redacted
from loadax.sources.base import Attributes
from loadax.sources.zarr.format import MARKERS
from loadax.sources.zarr.manifest import read_marker
from loadax.sources.zarr.names import FINISHED, PARTIAL, VERSION
from loadax.writing.chunk_layout import Layout, array_label
from loadax.writing.keys import KEPT_PARTS, keys_below, own_keys

# key range of the processes' files: "." follows "-"
_PART = "loadax.part-"
_AFTER_PARTS = "loadax.part."
_FUNCTIONS = " (functions are compared by their code and the values that they use)"
_MEANT = {
    f"data.{FILES}": " (the locations, sizes and times of change of the files that are read)",
    "data.functions": _FUNCTIONS,
    f"data.{INNER}": _FUNCTIONS,
    "version": " (1: rows of one shape, 2: ragged rows)",
}
_NAMED = 3  # foreign files in a message
_SWAPS = 8  # tries, in case other processes replace the same store


# `(i, n)`: process i of n.
Share = tuple[int, int]


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
        self._path = checked_path(
            "path", path, "the path or URL of a folder to write to"
        )
        self.location = redact(self._path if shown is None else shown)
        self.local = local_path(path)
        if self.local is not None and self.local.exists() and not self.local.is_dir():
            raise ArgumentError(
                f"{self.location} is a file; pass the path of a new folder"
            )
        # No cache: nothing is read twice.
        self._context = new_context(0)
        if self._path.endswith("/"):
            folder = self._path
        else:
            folder = f"{self._path}/"
        self.store: ts.KvStore = wait(
            ts.KvStore.open(key_value_spec(folder), context=self._context),
            self.location,
        )

    def begin(
        self, content: dict[str, Any], *, resume: bool, share: Share | None
    ) -> bool:
        """Prepares the destination for a store, and returns whether there is anything to write.

        Args:
            content: Description of the store's contents, as JSON.
            resume: Whether to resume an unfinished store.
            share: `(i, n)` of concurrent processes, which join a store that another one has begun; None: one process.

        Raises:
            ArgumentError: When the destination is occupied, or its store has other contents.
        """
        # In this order, because another process may meanwhile write marker, arrays and manifest and delete the marker.
        occupied = self._occupied()
        partial = self._marker(PARTIAL)
        manifest = self._marker(FINISHED)
        if manifest is not None:
            if not resume:
                raise ArgumentError(
                    f"{self.location} is a finished store, with rows: "
                    f"{manifest.get('rows')}; {self._remedy}",
                    argument="overwrite",
                )
            self._compare(manifest, content, share)
            # The process that finished it was stopped before the cleanup, or was of a version without these parts.
            if partial is not None or (
                self.local is not None and self.kept_parts.exists()
            ):
                self._tidy()
            return False
        if partial is not None:
            if not resume and share is None:
                raise ArgumentError(
                    f"{self.location} is an unfinished store; pass resume=True to "
                    f"resume it, or {self._remedy}",
                    argument="resume",
                )
            self._compare(partial, content, share)
        elif occupied:
            raise ArgumentError(
                f"{self.location} is not empty and not a store of loadax; choose "
                "another path, or delete it yourself"
            )
        else:
            self._write(PARTIAL, content)
        return True

    def finished(self) -> dict[str, Any] | None:
        """The manifest of a finished store whose last writer has cleaned up; None: there is none."""
        if self._marker(PARTIAL) is None:
            return self._marker(FINISHED)
        return None

    def shard_rows(self) -> int | None:
        """Rows of a part of the store that is there, finished or not; None if there is none."""
        described = self._marker(PARTIAL) or self._marker(FINISHED) or {}
        rows = described.get("shard_rows")
        if isinstance(rows, int) and rows > 0:
            return rows
        return None

    def is_complete(self) -> bool:
        """Whether all parts are written."""
        return self._marker(FINISHED) is not None

    def is_replaced(self) -> bool:
        """Whether there is a store to overwrite.

        Raises:
            ArgumentError: When loadax did not write all that is there, or the store can't be renamed.
        """
        if self._marker(FINISHED) is None and self._marker(PARTIAL) is None:
            if self._occupied():
                raise ArgumentError(
                    f"{self.location}: overwrite=True deletes only stores that "
                    "loadax wrote, and this is not one; choose another path, or "
                    "delete it yourself"
                )
            return False
        if self.local is None:
            raise ArgumentError(
                f"{self.location}: overwrite=True renames folders, which object "
                f"stores can't; {self._remedy}"
            )
        real = Path(os.path.realpath(self.local))
        if os.path.ismount(real) or not os.access(real.parent, os.W_OK):
            raise ArgumentError(
                f"{self.location} can't be renamed: it is a mount point, or "
                f"{real.parent} can't be written; write to a folder in it, or delete "
                "the store first"
            )
        if foreign := self.foreign():
            raise ArgumentError(
                f"{self.location}: overwrite=True would delete files that don't "
                f"belong to the store: {some(foreign, _NAMED)}; move them elsewhere, "
                "or choose another path"
            )
        return True

    @contextmanager
    def replacement(self, content: dict[str, Any]) -> Iterator["Destination"]:
        """A block that writes a new store next to this one, which it then replaces by two renames.

        Raises:
            SourceError: When a folder can't be renamed; says where the new store is.
        """
        assert self.local is not None
        target = Path(os.path.realpath(self.local))
        prefix = f".{target.name}"
        # else what a killed writer left may be the only complete store
        if self._marker(FINISHED) is not None:
            for left in left_behind(target.parent, prefix):
                self._clear(left)
        with temporary_file(target.parent, prefix=prefix) as (_, lock):
            new, old = (lock.with_name(lock.name + suffix) for suffix in BESIDE)
            try:
                beside = Destination(new, self.location)
                beside._write(PARTIAL, content)
                yield beside
            except BaseException as error:
                error.add_note(
                    f"loadax: {self.location} is unchanged: the new store is "
                    "unfinished, and is deleted"
                )
                shutil.rmtree(new, ignore_errors=True)
                raise
            try:
                _uninterrupted(partial(self._swap, target, lock))
                self._clear(lock)
            except KeyboardInterrupt as error:
                if new.exists():
                    state = f"is unchanged; {new}"
                else:
                    state = f"is the new store; the old one, {old},"
                error.add_note(
                    f"loadax: {self.location} {state} is deleted by the next "
                    "overwrite"
                )
                raise
            except SourceError:
                # so that the new store, which is complete, is not swept
                lock.unlink()
                raise

    def restore(self) -> None:
        """Puts the new store into its place if a process was killed between the renames that replace the old one."""
        if self.local is None or self.local.exists():
            return
        target = Path(os.path.realpath(self.local))
        for lock in left_behind(target.parent, f".{target.name}"):
            new = lock.with_name(lock.name + BESIDE[0])
            if (
                not target.exists()
                and new.is_dir()
                and Destination(new).is_complete()
            ):
                new.rename(target)
                self._clear(lock)
                log.warning(
                    "%s: a process was killed while it replaced this store; the new "
                    "one is here now",
                    target,
                )

    def _swap(self, target: Path, lock: Path) -> None:
        """Renames the store at `target` to the old one beside a lock file, and the new one to `target`."""
        new, old = (lock.with_name(lock.name + suffix) for suffix in BESIDE)
        for tries in reversed(range(_SWAPS)):
            try:
                with suppress(FileNotFoundError):  # another process is replacing it
                    target.rename(old)
                new.rename(target)
            except OSError as error:
                if not tries or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    with suppress(OSError):
                        old.rename(target)
                    raise SourceError(
                        f"{self.location}: the old store can't be replaced by the "
                        f"new one: {error}; the new store is complete at {new}: move "
                        "it to its destination, or delete it"
                    ) from error
                self._delete(old, lock)  # another process was faster
            else:
                return

    def _clear(self, lock: Path) -> None:
        """Deletes the stores beside a lock file, and the file, which says if the old store was found to be one."""
        new, old = (lock.with_name(lock.name + suffix) for suffix in BESIDE)
        shutil.rmtree(new, ignore_errors=True)
        if old.is_dir():
            if not lock.stat().st_size:
                self._delete(old, lock)
            else:
                shutil.rmtree(old, ignore_errors=True)
        lock.unlink(missing_ok=True)

    def _delete(self, old: Path, lock: Path) -> None:
        """Deletes a store that was replaced, unless foreign files have appeared in it."""
        if Destination(old).foreign():
            log.warning(
                "%s: files that appeared during the overwrite were moved to %s",
                self.location,
                old,
            )
            return
        with suppress(OSError):  # a full disk
            # once half of it is deleted, files of it may seem to be foreign
            lock.write_bytes(b"old")
        shutil.rmtree(old, ignore_errors=True)
        lock.write_bytes(b"")

    def foreign(self) -> list[str]:
        """Files in this folder that don't belong to the store, which must not be deleted."""
        assert self.local is not None
        arrays = (self._marker(FINISHED) or self._marker(PARTIAL) or {}).get("arrays")
        keys = keys_below(self.local)
        return sorted(
            {*keys} - {*own_keys(keys, arrays if isinstance(arrays, dict) else ())}
        )

    @property
    def _remedy(self) -> str:
        """Advice for a store that exists."""
        overwrite = "pass overwrite=True to start over"
        if self.local is None:
            return "write to another URL, or delete the store first"
        return overwrite

    def create(self, layout: Layout, attributes: Attributes) -> list[ts.TensorStore]:
        """Opens the arrays of the store, in leaf order, and creates missing ones with their attributes."""
        opening = []
        for array in layout.arrays:
            spec = {
                "driver": "zarr3",
                "metadata": {
                    **layout.metadata(array),
                    "attributes": dict(attributes.get(array.name, {})),
                },
                # so that a missing chunk is always an error
                "store_data_equal_to_fill_value": True,
                "fill_missing_data_reads": False,
            }
            if array.name:
                folder = self.store / f"{array.name}/"
            else:
                folder = self.store
            opening.append(
                ts.open(
                    spec,
                    kvstore=folder,
                    context=self._context,
                    create=True,
                    open=True,
                )
            )
        names = [array.name for array in layout.arrays]
        arrays = [
            wait(future, array_label(self.location, name))
            for future, name in zip(opening, names, strict=True)
        ]
        if names != [""]:
            self._write("zarr.json", self._group(names))
        return arrays

    @property
    def kept_parts(self) -> Path:
        """Folder that says which parts of a local store are finished, until all are."""
        assert self.local is not None
        return self.local / KEPT_PARTS

    def finish(self, content: dict[str, Any], share: Share | None) -> bool:
        """Marks this process as done and returns whether the store is complete."""
        index, count = share or (0, 1)
        markers = [f"{_PART}{process}-of-{count}.json" for process in range(count)]
        if count > 1:
            self._write(markers[index], {"version": VERSION})
            if any(self._marker(name) is None for name in markers):
                # Either others are not done, or one of them has already found all markers and written the manifest.
                return self._marker(FINISHED) is not None
        # several processes may find all markers: they write the same
        self._write(FINISHED, content)
        self._tidy()
        return True

    def _marker(self, name: str) -> dict[str, Any] | None:
        return read_marker(self.store, name, self.location)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        try:
            wait(
                self.store.write(name, json.dumps(content, indent=1).encode()),
                f"{self.location}: {name}",
            )
        except NotImplementedError as error:
            raise ArgumentError(
                f"{self.location} can't be written to ({error}); pass a local path, "
                "or an s3:// or gs:// URL"
            ) from redacted(error)

    def _tidy(self) -> None:
        wait(
            self.store.delete_range(ts.KvStore.KeyRange(_PART, _AFTER_PARTS)),
            self.location,
        )
        if self.local is not None:
            shutil.rmtree(self.kept_parts, ignore_errors=True)
        wait(self.store.write(PARTIAL, None), f"{self.location}: {PARTIAL}")

    def _occupied(self) -> bool:
        """Whether the folder contains anything but markers of loadax, which a killed process may leave behind."""
        if self.local is None:
            return any(
                wait(self.store.read(name), self.location).state == "value"
                for name in MARKERS
            )
        return self.local.exists() and any(
            not entry.name.startswith("loadax.") for entry in self.local.iterdir()
        )

    def _compare(
        self, stored: dict[str, Any], content: dict[str, Any], share: Share | None
    ) -> None:
        data = content.get("data")
        # a shortcut, that data decides
        stored, content = ({**each, "recipe": None} for each in (stored, content))
        if share is not None and isinstance(data, dict):
            # Other processes may read copies of the files, with other modification times.
            content = {**content, "data": {**data, FILES: None}}
        difference = _difference(stored, content, "")
        if difference:
            field, old, new = difference
            raise ArgumentError(
                f"{self.location} was started with {field} = {json.dumps(old):.200}, "
                f"but now it is {json.dumps(new):.200}{_MEANT.get(field, '')}; "
                f"resume with the same data and arguments, or {self._remedy}",
                argument="overwrite",
            )

    def _group(self, names: list[str]) -> dict[str, Any]:
        """Group metadata with consolidated metadata of its arrays, for servers that can't list folders."""
        reads = {name: self.store.read(f"{name}/zarr.json") for name in names}
        members = {
            name: json.loads(wait(read, array_label(self.location, name)).value)
            for name, read in reads.items()
        }
        consolidated = {
            "kind": "inline",
            "must_understand": False,
            "metadata": members,
        }
        return {
            "zarr_format": 3,
            "node_type": "group",
            "attributes": {},
            "consolidated_metadata": consolidated,
        }


def _uninterrupted(call: Callable[[], object]) -> None:
    """Makes a short call on another thread, where no Ctrl-C ends it in the middle; raises that once it has ended."""
    with ThreadPoolExecutor(1, "loadax-swap") as pool:
        # A pool does not wait for a thread whose start was interrupted: it starts before there is anything to do.
        pool.submit(bool).result()
        future = pool.submit(call)
        try:
            future.result()
        except KeyboardInterrupt:
            wait_for([future])
            raise


def _difference(old: Any, new: Any, field: str) -> tuple[str, Any, Any] | None:
    """Returns the first field in which two JSON values differ, with both values; None if they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*new, *old]):
            if not differs(old.get(key), new.get(key), key):
                continue
            nested = _difference(
                old.get(key), new.get(key), f"{field}.{key}" if field else key
            )
            if nested:
                return nested
        return None
    if old == new:
        return None
    return (field, old, new)
