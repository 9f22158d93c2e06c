"""`write_zarr`: writes the rows of a dataset to a zarr store."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from time import sleep
from typing import Any

from loadax.core.arguments import flag, integer, optional_flag, shown
from loadax.core.distributed import this_process
from loadax.core.log import log
from loadax.core.progress_bar import progress_bar
from loadax.core.spec import flatten_spec
from loadax.core.tree import Structure, flatten
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.kept.index_folder import differs
from loadax.kept.kept_pass import PassOptions, run_pass
from loadax.kept.parts import ChangedError, PartsFolder
from loadax.kept.shared import SharedPass, shared_pass
from loadax.protocols import Engine
from loadax.sources.base import BaseSource
from loadax.sources.tokens.ragged import open_ragged
from loadax.sources.zarr.discovery import RaggedArrays, find_arrays
from loadax.sources.zarr.names import BARE, LENGTHS, RAGGED, VERSION
from loadax.sources.zarr.source import TensorStoreSource
from loadax.work.executors import checked_engine
from loadax.writing.chunk_layout import (
    Sizes,
    array_label,
    array_names,
    divides,
    plan_layout,
)
from loadax.writing.destination import Destination, Share
from loadax.writing.ragged_rows import find_ragged
from loadax.writing.source_order import in_source_order
from loadax.writing.store_parts import StoreParts
from loadax.writing.written_rows import Rows, Written

_POLL = 0.2  # seconds
# more than the cores of a small machine, since reads wait for disk and network
_WORKERS = 4


@contextmanager
def _ragged_advice() -> Iterator[None]:
    """Adds advice to an error about rows of different lengths of which the sample had none."""
    try:
        yield
    except LeafError as error:
        # or lists whose lengths differ
        if "rows are ragged" in str(error) or "[0]" in str(error):
            error.add_note(
                "loadax: pass ragged=True to store rows of any length, and "
                "overwrite=True if it was begun"
            )
        raise


@_ragged_advice()
def write_zarr(
    rows: Rows,
    path: str | os.PathLike[str],
    *,
    ragged: bool | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    compression: str | None = "zstd",
    resume: bool = False,
    overwrite: bool = False,
    shard: Share | None = None,
    progress: bool | None = None,
    workers: int | None = None,
    executor: Engine | None = None,
    go_on: str = "resume it with resume=True, on the command line --resume",
    recipe: str | None = None,
) -> Structure:
    """Writes all rows, in the order of their positions, to a zarr3 store with a checksum on every chunk.

    An example that is a bare array becomes the array at `path`; one with leaves becomes a group with an array per leaf,
    named by its keys (joined by dots). Memory is bounded by a few shards. loadax refuses to open the store until the
    last part is written; after a crash the write can be resumed. See `source_order` for shuffled rows.

    Args:
        rows: Rows to write.
        path: Path of a new folder, or URL.
        ragged: Whether all leaves that have a dimension are ragged; None: those whose lengths differ in a sample.
        chunk_rows: Rows per chunk; None: at least 4 KiB, which suits any shuffle.
        shard_rows: Rows per file, a multiple of chunk_rows; None: a 64th of the rows, at most about 128 MiB for all
            arrays together.
        compression: `zstd`, `blosc` (better for floats), or None.
        resume: Whether to resume an unfinished store: finished parts are kept. Those of a URL, a share, or an earlier
            version of loadax are read back first. A finished store is left unchanged.
        overwrite: Whether to replace a local store that loadax wrote, once the new one is complete.
        shard: `(i, n)`: this is process i of n that write concurrently. The last one finishes the store.
        progress: Whether to show a progress bar; None: if stderr is a terminal.
        workers: Number of threads that read rows.
        executor: What reads and writes parts instead of this process; see `Dataset.filter`.
        go_on: Advice for an interrupted write, for messages.
        recipe: Result of `recipe_of`, by which `open_by_recipe` knows the store; None: it can't.

    Returns:
        The structure of an example.

    Raises:
        ArgumentError: When a value is invalid, or `path` is occupied.
        LeafTypeError: When a leaf is not numeric.
        SourceError: When the store can't be written.
    """
    resume = flag("resume", resume)
    overwrite = flag("overwrite", overwrite)
    optional_flag("progress", progress)
    optional_flag("ragged", ragged)
    share = _share(shard)
    if overwrite and (resume or share is not None):
        if resume:
            other = "resume=True"
        else:
            other = f"shard={shard!r}"
        raise ArgumentError(
            f"overwrite=True with {other}: what one writes the other would delete; "
            "delete the old store first"
        )
    if workers is None:
        threads = _WORKERS
    else:
        threads = integer("workers", workers, 1)
    engine = checked_engine(executor)
    final = Destination(path)
    final.restore()
    # Earlier versions wrote fewer and larger parts.
    if overwrite or shard_rows is not None:
        begun = None
    else:
        begun = final.shard_rows()
    sizes = Sizes(chunk_rows, shard_rows if begun is None else begun, compression)
    with (
        shared_pass("writes")
        if resume and share is None
        else nullcontext() as together
    ):
        if isinstance(rows, Written):
            known = find_ragged(rows, ragged, sizes)
        else:
            known = None
        if known is None and begun is not None and not divides(chunk_rows, begun):
            sizes = sizes._replace(shard_rows=None)
        if known is None:
            layout = plan_layout(rows.spec, len(rows), sizes)
        else:
            layout = known.layout
        if known is None:
            structure = flatten_spec(rows.spec)[1]
        else:
            structure = known.structure
        content = {
            "version": VERSION,
            **layout.describe(),
            "data": (known or rows).describe(),
        }
        if known is not None:
            content |= {
                "version": RAGGED,
                "ragged": [
                    array.name for array in layout.arrays if array.shard_blocks
                ],
            }
        # Of maps of rows that are not ragged, each call checks the result.
        plain = structure == _plain_structure(content["arrays"])
        if (
            plain
            and recipe is not None
            and isinstance(rows, Written)
            and (known is not None or not rows.reader.maps)
        ):
            content["recipe"] = recipe
        content = json.loads(json.dumps(content))
        if engine is not None and (final.local is None or share is not None):
            raise ArgumentError(
                "executor= with "
                f"{'a URL' if final.local is None else f'shard={shard!r}'}: its "
                "workers keep parts in a folder that they share; write to one, "
                "without shard="
            )
        process = this_process()
        # buckets have no claims
        is_dealt = (
            resume and share is None and final.local is None and process.count > 1
        )
        if is_dealt:
            share = (process.index, process.count)
        replaced = overwrite and final.is_replaced()
        if not replaced and not final.begin(content, resume=resume, share=share):
            log.info("%s: finished already", final.location)
            return structure
        with (
            final.replacement(content)
            if replaced
            else _hint(final, go_on) as destination
        ):
            arrays = destination.create(layout, rows.attributes)
            names = [
                array_label(destination.location, array.name)
                for array in layout.arrays
            ]
            parts = StoreParts(
                known or rows,
                layout,
                arrays,
                names,
                f"writing {destination.location}",
                threads,
            )
            if destination.local is None or share is not None:
                _write_share(parts, share or (0, 1), resume=resume, progress=progress)
            else:
                options = PassOptions(1, engine, progress)
                _write_together(parts, destination, options, together, resume=resume)
            if not destination.finish(content, share):
                text = (
                    "%s: process %d of %d is done; the store is complete when all are"
                )
                log.info(text, destination.location, *(share or (0, 1)))
            if is_dealt and together is not None:
                together.wait_until(
                    destination.is_complete,
                    destination.location,
                    "the shares of other processes",
                )
        return structure


def open_by_recipe(
    path: str | os.PathLike[str], recipe: str | None
) -> BaseSource | None:
    """Opens a finished store of rows with this recipe, without planning or reading a row; None: there is none."""
    if recipe is None:
        return None
    destination = Destination(path)
    destination.restore()
    manifest = destination.finished()
    if manifest is None or differs(manifest.get("recipe"), recipe, "recipe"):
        return None
    return open_written(path, _plain_structure(manifest["arrays"]))


def _plain_structure(arrays: Iterable[str]) -> Structure:
    """The structure of examples that are bare arrays, or dicts of arrays, from the names of the store's arrays."""
    names = [name for name in arrays if name != LENGTHS]
    return flatten("" if names in ([""], [BARE]) else dict.fromkeys(names, ""))[1]


def open_written(path: str | os.PathLike[str], structure: Structure) -> BaseSource:
    """Opens a store of `write_zarr`, with the structure of its examples."""
    arrays = find_arrays(path, None)
    if isinstance(arrays, RaggedArrays):
        return open_ragged(arrays, structure)
    names = array_names(structure)
    return TensorStoreSource(
        structure.build(
            [arrays] if names == [""] else [arrays[name] for name in names]
        )
    )


def _write_share(
    parts: StoreParts, share: Share, *, resume: bool, progress: bool | None
) -> None:
    """Writes every n-th part from i on."""
    own_parts = range(share[0], parts.layout.parts, share[1])
    with progress_bar(
        parts.label, sum(map(parts.rows_of, own_parts)), "row", progress
    ) as done:
        wanted = (
            list(parts.missing(own_parts, lambda part: done(parts.rows_of(part))))
            if resume
            else own_parts
        )
        with in_source_order(parts, wanted, progress) as ordered:
            ordered.write(wanted, lambda part: done(parts.rows_of(part)))


def _write_together(
    parts: StoreParts,
    destination: Destination,
    options: PassOptions,
    together: SharedPass | None,
    *,
    resume: bool,
) -> None:
    """Writes the parts that are not finished, together with other processes that write the same local store.

    Raises:
        ArgumentError: When the processes of a run have different folders at this path.
        SourceError: When the folder was deleted meanwhile.
    """
    folder = destination.kept_parts
    is_new = not folder.exists()
    try:
        PartsFolder(folder, parts.label).make()
    except OSError as error:
        raise SourceError(
            f"{folder} can't be written: {error}; delete it, or free space"
        ) from error
    if together is not None:
        try:
            together.check_folder(folder, parts.label, {}, destination.is_complete)
        except ArgumentError:  # each host may have a copy of its own
            text = (
                "%s: this is not the folder of process 0, so this process writes all "
                "rows for itself"
            )
            log.warning(text, destination.location)
    with progress_bar(parts.label, sum(parts.sizes), "row", options.progress) as done:
        kept = PartsFolder(
            folder,
            parts.label,
            parts.layout.parts,
            lambda part: done(parts.rows_of(part)),
        )
        try:
            with kept.joined():
                # begun by another version of loadax, or before the first part was finished
                if resume and is_new:
                    for _ in parts.missing(
                        range(kept.count), lambda part: kept.put(part, {})
                    ):
                        pass
                wanted = [part for part in range(kept.count) if not kept.has(part)]
                if resume:
                    log.info(
                        "%s: kept %d of %d parts",
                        parts.label,
                        kept.count - len(wanted),
                        kept.count,
                    )
                if options.executor is not None:
                    run_pass(parts, kept, options)
                    return
                with in_source_order(parts, wanted, options.progress) as ordered:
                    while not kept.is_complete():
                        ordered.write(iter(kept.claim, None), partial(_keep, kept))
                        sleep(_POLL if not kept.is_complete() else 0)
        except ChangedError:
            if not destination.is_complete():
                raise SourceError(
                    f"{folder} was deleted; call again, with resume=True"
                ) from None


def _keep(kept: PartsFolder, part: int) -> None:
    kept.put(part, {})
    kept.finish(part)


@contextmanager
def _hint(destination: Destination, go_on: str) -> Iterator[Destination]:
    """Adds advice to any exception that interrupts the write, including Ctrl-C."""
    try:
        yield destination
    except BaseException as error:
        error.add_note(f"loadax: {destination.location} is unfinished; {go_on}")
        raise


def _share(shard: Any) -> Share | None:
    if shard is None:
        return None
    remedy = (
        "(i, n) with 0 <= i < n: this process's index and the number of processes"
    )
    if not isinstance(shard, tuple) or len(shard) != 2:
        raise ArgumentError(f"shard={shown(shard)}: pass {remedy}")
    count = integer("shard[1]", shard[1], 1, remedy=remedy)
    return integer("shard[0]", shard[0], 0, count - 1, remedy=remedy), count
