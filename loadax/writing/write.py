"""`write_zarr`: the rows of a dataset as a zarr store."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loadax.core.arguments import flag, integer, optional_flag, shown
from loadax.core.progress import progress_bar
from loadax.core.spec import flatten_spec
from loadax.errors import ArgumentError, SourceError
from loadax.protocols import Tree
from loadax.sources.zarr.discovery import find_arrays
from loadax.sources.zarr.manifest import VERSION
from loadax.sources.zarr.source import TensorStoreSource
from loadax.writing.destination import Destination, Share
from loadax.writing.layout import plan_layout
from loadax.writing.names import array_label, array_names
from loadax.writing.parts import Parts
from loadax.writing.rows import Rows

_WORKERS = 4  # more than the cores of a small machine: a source waits for disks and networks

_log = logging.getLogger("loadax")


def write_zarr(
    rows: Rows,
    path: str | os.PathLike[str],
    *,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    compression: str | None = "zstd",
    resume: bool = False,
    overwrite: bool = False,
    shard: Share | None = None,
    progress: bool | None = None,
    workers: int | None = None,
    go_on: str = "go on with resume=True, on the command line --resume",
) -> None:
    """Writes all rows, in the order of their positions, to a zarr3 store with a checksum on every chunk.

    An example that is one array becomes the array at `path`; one of several leaves a group with an array for each,
    named by its keys (joined by dots). Memory stays that of a few shards. Until the last part is written nothing opens
    the store; what was written before a crash can be gone on with.

    Args:
        rows: what to write.
        path: of a folder that is not there yet, or a URL.
        chunk_rows: rows that are decoded together; None: at least 4 KiB, which any shuffle reads well.
        shard_rows: rows of a file, a multiple of chunk_rows; None: about 128 MiB, all arrays together.
        compression: `zstd`, `blosc` (better for floats), or None.
        resume: goes on with a store that was not written to its end: what is there is read back, and kept if it is
            whole. A finished store is left as it is.
        overwrite: replaces the zarr store that is there, once the new one is whole.
        shard: `(i, n)`: this is process i of n that write side by side. Whichever is the last to be done finishes the
            store.
        progress: whether to show a bar; None: when stderr is a terminal.
        workers: threads that read rows.
        go_on: what to do when the writing was stopped, for messages.

    Raises:
        ArgumentError: when a value can't be used, or something stands at `path`.
        LeafTypeError: when a leaf holds something else than numbers.
        SourceError: when the store can't be written to.
    """
    resume, overwrite = flag("resume", resume), flag("overwrite", overwrite)
    optional_flag("progress", progress)
    share = _share(shard)
    if overwrite and (resume or share is not None):
        other = "resume=True" if resume else f"shard={shard!r}"
        raise ArgumentError(
            f"overwrite=True with {other}: what one writes the other would delete; delete the old store first",
            argument="overwrite",
        )
    threads = _WORKERS if workers is None else integer("workers", workers, 1)
    layout = plan_layout(rows.spec, len(rows), chunk_rows=chunk_rows, shard_rows=shard_rows, compression=compression)
    content = json.loads(json.dumps({"version": VERSION, **layout.describe(), "data": rows.describe()}))
    final = Destination(path)
    destination = final.begin(content, resume=resume, overwrite=overwrite, share=share)
    if destination is None:
        _log.info("%s: finished already", final.location)
        return
    with _hint(destination, go_on) if destination is final else _discarding(destination):
        arrays = destination.create(layout)
        parts = Parts(rows, layout, arrays, [array_label(destination.location, array.name) for array in layout.arrays])
        index, count = share or (0, 1)
        own_parts = range(index, layout.parts, count)
        own_rows = sum(stop - start for start, stop in map(layout.part, own_parts))
        with progress_bar(f"writing {destination.location}", own_rows, "row", progress) as done:
            wanted = parts.missing(own_parts, done) if resume else own_parts
            written = parts.write(wanted, threads, done)
        if resume:
            _log.info("%s: kept %d parts, wrote %d", destination.location, len(own_parts) - written, written)
        if not destination.finish(content, share):
            _log.info(
                "%s: process %d of %d is done; the store is whole when all are", destination.location, index, count
            )
    if destination is not final:
        final.replace(destination, content)


def open_written(path: str | os.PathLike[str], spec: Tree) -> TensorStoreSource:
    """The rows of a store that `write_zarr` wrote, as the tree they were."""
    structure = flatten_spec(spec)[1]
    arrays = find_arrays(path, None)
    names = array_names(structure)
    return TensorStoreSource(structure.build([arrays] if names == [""] else [arrays[name] for name in names]))


@contextmanager
def _hint(destination: Destination, go_on: str) -> Iterator[None]:
    """Whatever stops the writing, Ctrl-C too, says how to go on."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"loadax: {destination.location} was not written to its end; {go_on}")
        raise


@contextmanager
def _discarding(beside: Destination) -> Iterator[None]:
    """Whatever stops the writing of a store that would have replaced another one, that one stays."""
    try:
        yield
    except BaseException as error:
        error.add_note(
            f"loadax: {beside.location} is as it was: the new store was not written to its end, and is deleted"
        )
        try:
            beside.discard()
        except (OSError, SourceError) as left:
            error.add_note(f"loadax: what was written of it stays at {beside.address}, which can't be deleted: {left}")
        raise


def _share(shard: Any) -> Share | None:
    if shard is None:
        return None
    remedy = "(i, n) with 0 <= i < n, this process's number and how many there are"
    if not isinstance(shard, tuple) or len(shard) != 2:
        raise ArgumentError(f"shard={shown(shard)}: pass {remedy}")
    count = integer("shard[1]", shard[1], 1, remedy=remedy)
    return integer("shard[0]", shard[0], 0, count - 1, remedy=remedy), count
