"""Cache: writes the rows of a dataset to a store once, and opens the store if it has them already."""

import os
from typing import Any, final

from loadax.core.arguments import flag, optional_flag, path as checked_path, text
from loadax.core.fingerprint import unrecognised
from loadax.core.log import log
from loadax.errors import ArgumentError
from loadax.plan.order import check_fixed_rows
from loadax.protocols import Engine, Order
from loadax.reader import Reader
from loadax.redaction import redact
from loadax.sources.base import BaseSource, inner_functions
from loadax.sources.path_overlap import check_elsewhere
from loadax.writing.write import open_by_recipe, open_written, write_zarr
from loadax.writing.written_rows import Written, recipe_of


@final
class Cache:
    """A store for the rows of a dataset; see `Dataset.cache`.

    Args:
        path: Folder or URL.
        key: The user's word for what all functions do; None: their fingerprints.
        ragged: As in `write_zarr`.
        sizes: `chunk_rows`, `shard_rows` and `compression` of `write_zarr`.
        overwrite: Whether to rewrite a local store.
        executor: As in `write_zarr`.
        progress: As in `write_zarr`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        key: Any,
        ragged: Any,
        sizes: tuple[Any, Any, Any],
        overwrite: Any,
        executor: Engine | None,
        progress: Any,
    ):
        remedy = "the path or URL of a folder for the cache"
        self._path = checked_path("path", path, remedy)
        self._overwrite = flag("overwrite", overwrite)
        if key is not None:
            text(
                "key",
                key,
                "a str that you change when the functions before cache() change",
            )
        self._key = key
        self._ragged = optional_flag("ragged", ragged)
        self._sizes = sizes
        self._executor = executor
        self._progress = progress
        self._recipe: str | None = None

    def kept(
        self, reader: Reader, order: Order, decisive: tuple[Any, ...] = ()
    ) -> BaseSource | None:
        """Opens the store if it has the rows of a recipe, without mapping one; None: it has not.

        Args:
            reader: Reader of the rows.
            order: Order of the rows.
            decisive: What else the rows depend on.
        """
        if order.varies or reader.traits.random:
            return None
        arguments = (*decisive, self._ragged, *self._sizes)
        self._recipe = recipe_of(reader, order, self._key, *arguments)
        if self._overwrite:
            return None
        return open_by_recipe(self._path, self._recipe)

    def written(self, reader: Reader, order: Order) -> BaseSource:
        """Writes the rows, or what an unfinished store lacks of them, and opens the store.

        Raises:
            ArgumentError: When the order or a map is random, or the path has anything else.
            LeafError: When a row has another form than those of the sample; names it.
        """
        path = self._path
        check_fixed_rows(order, "cache()")
        if order.varies or reader.traits.random:
            what = "a map is random or has with_epoch=True"
            remedy = (
                "call cache() before that map: "
                "data.map(slow).cache(path).map(augment, rng=True)"
            )
            if order.varies:
                what = "the order changes every epoch"
                remedy = (
                    "call map() and cache() first, then shuffle(): "
                    "data.map(fn).cache(path).shuffle(seed=0)"
                )
            raise ArgumentError(
                f"cache() writes every row once, but {what}; {remedy}"
            )
        check_elsewhere(reader.source, path)
        functions = [
            *(transform.function for transform in reader.maps),
            *inner_functions(reader.source),
        ]
        if self._key is None and (reason := unrecognised(functions)):
            log.warning(
                "cache %s: %s; pass key=, a text that you change with it",
                redact(path),
                reason,
            )
        chunk_rows, shard_rows, compression = self._sizes
        structure = write_zarr(
            Written(reader, order, self._key),
            path,
            ragged=self._ragged,
            chunk_rows=chunk_rows,
            shard_rows=shard_rows,
            compression=compression,
            resume=not self._overwrite,
            overwrite=self._overwrite,
            executor=self._executor,
            progress=self._progress,
            go_on="call cache() again to continue",
            recipe=self._recipe,
        )
        return open_written(path, structure)
