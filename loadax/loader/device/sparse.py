"""pack_sparse: sparse rows in packs of a fixed size, and the `device_map` that makes them dense."""

from collections.abc import Callable
from typing import Any

from jax import numpy as jnp

from loadax.core.arguments import integer
from loadax.core.formatting import count_text
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.protocols import Tree

_MOST = (1 << 31) - 1  # values of a dense pack, which are numbered by int32


def pack_sparse(
    data: Any, rows: int = 64, entries: int | None = None, columns: int | None = None
) -> tuple[Dataset, Callable[[Tree], Tree]]:
    """Packs sparse rows for the devices, and returns the packs with the `device_map` that makes them dense.

    A pack holds up to `rows` consecutive rows of the data, in the order of epoch 0, whose entries stand one after the
    other in a budget of fixed size. So all batches have one shape, and little more than the entries is placed. A pack
    is one example: `Dataloader(packs, batch_size=16, device_map=dense)` yields batches of 16 packs, whose leaf `x` is
    `[16, rows, columns]`, partitioned as the packs. `x.reshape(-1, columns)` in the training step moves nothing.

    Before `dense`, an example has `indices` (uint16[entries], or int32 of more than 65,536 columns), `values`
    (their dtype, `[entries]`), `lengths` (int32[rows], entries of each row) and `row_mask` (bool[rows], False where a
    pack has fewer rows). Other leaves get the dimension `rows` first. `dense` replaces the first three by `x`, and adds
    entries of the same column. Rows of a pack stay together in all epochs; verbs such as `shuffle` apply to packs.

    Args:
        data: Rows of `from_sparse`, or what `as_dataset` makes such rows of. Maps may change the entries.
        rows: Most rows of a pack.
        entries: Most entries of a pack. None: those of the largest pack of `rows` rows, but at most 1.5 times their
            mean, or those of the longest row.
        columns: Number of columns, where a map has changed it. None: that of the matrix.

    Raises:
        ArgumentError: If a value can't be used, a row has more entries than `entries`, or the data has no sparse
            matrix.
        LeafError: If a row is not a dict with `indices` and `values`.

    Examples:
        >>> import numpy as np
        >>> import scipy.sparse
        >>> from loadax import Dataloader, from_sparse, pack_sparse
        >>> matrix = scipy.sparse.random(512, 100, density=0.05, format="csr", dtype=np.float32, rng=0)
        >>> packs, dense = pack_sparse(from_sparse(matrix), rows=32)
        >>> batch = Dataloader(packs, batch_size=8, device_map=dense)[0]
        >>> batch["x"].shape
        (8, 32, 100)
        >>> bool((batch["x"].reshape(-1, 100) == matrix[:256].toarray()).all())
        True
    """
    from loadax.io import as_dataset
    from loadax.packing.sparse_rows import LENGTHS, pack_rows
    from loadax.sources.base import walk
    from loadax.sources.sparse.source import INDICES, VALUES, SparseSource

    rows = integer("rows", rows, 1)
    if entries is not None:
        entries = integer("entries", entries, 1)
    dataset = as_dataset(data)
    if dataset.is_stream:
        raise ArgumentError(
            "pack_sparse() of a stream; pack the dataset before to_stream()"
        )
    if columns is None:
        below = walk(dataset.reader.source)
        found = {each.columns for each in below if isinstance(each, SparseSource)}
        if len(found) != 1:
            raise ArgumentError(
                f"columns=None, but the data has sparse matrices of {sorted(found)} "
                "columns; open one with loadax.from_sparse, or pass columns="
            )
        columns = found.pop()
    columns = integer("columns", columns, 1)
    groups, fill = pack_rows(dataset.reader, dataset.order, rows, entries, columns)

    def dense(example: Tree) -> Tree:
        if (rows + 1) * columns > _MOST:
            raise ArgumentError(
                f"a dense pack of {count_text(rows, 'row')} and "
                f"{count_text(columns, 'column')} is larger than 2^31 values; pack "
                f"fewer: pack_sparse(data, rows={max(1, _MOST // columns - 1)})"
            )
        leaves = dict(example)
        numbers = leaves.pop(INDICES)
        values = leaves.pop(VALUES)
        # Entries after the last row are padding, and get a row that is dropped.
        ends = jnp.cumsum(leaves.pop(LENGTHS))
        owners = jnp.cumsum(jnp.zeros(len(numbers), jnp.int32).at[ends].add(1))
        # of one dimension, which XLA scatters faster on CPUs
        flat = jnp.zeros(rows * columns, values.dtype)
        at = flat.at[owners * columns + numbers.astype(jnp.int32)]
        add = at.max if values.dtype == jnp.bool_ else at.add
        filled = add(values, mode="drop")
        return {"x": filled.reshape(rows, columns), **leaves}

    return Dataset(groups).map(fill), dense
