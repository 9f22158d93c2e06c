"""SparsePacks: consecutive sparse rows whose entries are one after the other, in a budget of fixed size."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from loadax.composition.grouped import GroupedRow
from loadax.core.array_parts import indices
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.core.spec import flatten_spec, spec_of, stack
from loadax.core.tree import map_leaves
from loadax.errors import ArgumentError, LeafError
from loadax.packing.sparse_plan import PLAN_VERSION, plan_packs
from loadax.plan.fixed_part import describe_first_epoch
from loadax.plan.order import check_fixed_rows
from loadax.protocols import Array, ArraySpec, Integers, Order, Tree, Visits
from loadax.reader import Reader
from loadax.row_index.build import scan_options
from loadax.row_index.integers import integers_of
from loadax.sources.base import BaseSource, Child, MapChild, Traits
from loadax.sources.checks import check_rows, chunk_starts
from loadax.sources.sparse.source import INDICES, VALUES
from loadax.sources.wrappers.chunk_cache import chunk_of

LENGTHS = "lengths"
ROW_MASK = "row_mask"
_NARROW = 1 << 16  # columns whose numbers take two bytes


class Sizes(NamedTuple):
    """The sizes of packs.

    Args:
        rows: Most rows of a pack.
        entries: Most entries of a pack.
        columns: Columns of the matrix.
    """

    rows: int
    entries: int
    columns: int


def pack_rows(
    reader: Reader, order: Order, rows: int, most: int | None, columns: int
) -> "SparsePacks":
    """Packs the sparse rows that a reader returns in an order; see `loadax.pack_sparse`."""
    check_fixed_rows(order, "pack_sparse()")
    if not order.size:
        raise ArgumentError(
            "pack_sparse() of a dataset without rows; check its source or slice"
        )
    positions = np.arange(order.size)
    visits = order.visits(np.zeros_like(positions), positions)
    example = _spec_of_first(reader, Visits(visits.rows[:1], visits.epochs[:1]))
    lengths = reader.lengths(visits.rows)
    if lengths is None:
        options = scan_options(None, None, None, None)
        lengths = integers_of(
            "pack_sparse", "rows", _count_entries, [""], reader, order, options
        )[:, 0]
    bounds, entries = plan_packs(
        lengths, rows, most, lambda position: int(visits.rows[position])
    )
    sizes = Sizes(rows, entries, columns)
    described = [
        "sparse packs",
        PLAN_VERSION,
        [*sizes],
        digest_values(lengths),
        describe_first_epoch(order),
        reader.describe(),
    ]
    return SparsePacks(reader, order, bounds, sizes, example, described)


def _count_entries(example: Any) -> int:
    return len(example[INDICES])


def _spec_of_first(reader: Reader, visits: Visits) -> dict[str, Any]:
    """Spec of the first sparse row.

    Raises:
        LeafError: When it is none; says what to write.
    """
    example = reader.examples(visits)[0]
    spec: dict[str, Any] = {}
    if isinstance(example, dict) and {INDICES, VALUES} <= example.keys():
        spec = spec_of(example)
    ragged = [leaf for name, leaf in spec.items() if name in (INDICES, VALUES)]
    if not ragged or any(len(leaf.shape) != 1 for leaf in ragged):
        raise LeafError(
            f"row {visits.rows[0]} is not a dict with flat arrays 'indices' and "
            "'values'; open sparse rows with loadax.from_sparse(data)"
        )
    for name in (LENGTHS, ROW_MASK):
        if name in example:
            raise LeafError(
                f"pack_sparse() adds {name!r}, which rows have; rename it: "
                f".rename({{{name!r}: 'own_{name}'}})"
            )
    return spec


@final
class SparsePacks(BaseSource):
    """Row i: the rows at the positions `[bounds[i], bounds[i + 1])`, their entries one after the other.

    Args:
        reader: Reader of the sparse rows.
        order: Order of the rows, of which epoch 0 counts.
        bounds: First position of each pack, and the end of the last one, int64[packs + 1].
        sizes: Sizes of packs.
        example: Spec of a sparse row; its entries may have any length.
        described: Everything that determines the packs, as JSON.
    """

    spec: Tree = None

    def __init__(
        self,
        reader: Reader,
        order: Order,
        bounds: Integers,
        sizes: Sizes,
        example: dict[str, Any],
        described: list[Any],
    ):
        self._reader = reader
        self._order = order
        self._bounds = bounds
        self._sizes = sizes
        self._example = example
        self.described = [described]
        self._beside = {
            name: leaf
            for name, leaf in example.items()
            if name not in (INDICES, VALUES)
        }
        leaves, structure = flatten_spec(self._beside)
        dtype: np.dtype[Any]
        if sizes.columns <= _NARROW:
            dtype = np.dtype(np.uint16)
        else:
            dtype = np.dtype(np.int32)
        rows = (sizes.rows,)
        self.spec = {
            INDICES: ArraySpec((sizes.entries,), dtype),
            VALUES: ArraySpec((sizes.entries,), example[VALUES].dtype),
            LENGTHS: ArraySpec(rows, np.dtype(np.int32)),
            ROW_MASK: ArraySpec(rows, np.dtype(np.bool_)),
            **structure.build(
                ArraySpec((*rows, *leaf.shape), leaf.dtype) for leaf in leaves
            ),
        }
        traits = reader.traits
        self.traits = Traits(
            owns_memory=True,
            concurrent_reads=traits.concurrent_reads,
            random=traits.random,
            num_maps=traits.num_maps,
            runs_python=True,
            attributes=traits.attributes,
            shared_by=traits.shared_by or "pack_sparse()" * order.repeats,
        )

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __repr__(self) -> str:
        rows, entries, _ = self._sizes
        return (
            f"{count_text(self._order.size, 'row')} in packs of {rows} rows and "
            f"{entries} entries of {self._reader.source!r}"
        )

    @property
    def children(self) -> Sequence[Child]:
        times = self._order.size / max(1, self._reader.num_rows)
        return (Child("", self._reader.source, None, times, self._reader.maps),)

    def map_children(self, wrap: MapChild) -> "SparsePacks":
        reader = self._reader.with_source(wrap(self.children[0]))
        return SparsePacks(
            reader,
            self._order,
            self._bounds,
            self._sizes,
            self._example,
            self.described[0],
        )

    @property
    def child_order(self) -> Order:
        return self._order

    @cached_property
    def chunks(self) -> Integers | None:
        """First packs per chunk of the source, if the rows are in its order; None otherwise."""
        starts = chunk_starts(self._reader.source)
        if starts is None:
            return None
        firsts = self._bounds[:-1]
        rows = self._order.visits(np.zeros_like(firsts), firsts).rows
        turns = np.diff(chunk_of(starts, rows), prepend=-1)
        if (turns < 0).any():
            return None
        begins = np.flatnonzero(turns)
        begins[0] = 0
        return begins

    def rows_below(self, rows: Integers) -> tuple[Integers, Integers]:
        below, packs = self._below(Visits(rows, np.zeros_like(rows)))
        return packs, below.rows

    def documents(self, row: int) -> list[GroupedRow]:
        _, rows = self.rows_below(np.array([row]))
        return [GroupedRow(inner) for inner in rows.tolist()]

    def read_visits(self, visits: Visits) -> Tree:
        below, packs = self._below(visits)
        count = len(visits.rows)
        examples = self._reader.lent_examples(below)
        rows = below.rows.tolist()
        lengths = np.array([len(each[INDICES]) for each in examples], np.int64)
        totals = np.bincount(packs, lengths, count).astype(np.int64)
        self._check(examples, rows, lengths, totals)
        # Place of each row among the places of all packs.
        places = packs * self._sizes.rows
        places += np.arange(len(packs)) - np.searchsorted(packs, packs)

        def spread(values: Array) -> Array:
            """Values of one a row, padded with zeros to the rows of packs."""
            shape = values.shape[1:]
            out = np.zeros((count * self._sizes.rows, *shape), values.dtype)
            out[places] = values
            return out.reshape(count, self._sizes.rows, *shape)

        beside = [{name: each[name] for name in self._beside} for each in examples]
        return {
            INDICES: self._entries(examples, INDICES, totals),
            VALUES: self._entries(examples, VALUES, totals),
            LENGTHS: spread(lengths.astype(np.int32)),
            ROW_MASK: spread(np.ones(len(rows), np.bool_)),
            **map_leaves(spread, stack(beside, self._beside, rows)),
        }

    def _below(self, visits: Visits) -> tuple[Visits, Integers]:
        """Visits of the rows of packs, and for each the index of its pack in `visits`."""
        packs = check_rows(visits.rows, len(self))
        first = self._bounds[packs]
        counts = self._bounds[packs + 1] - first
        if self._order.varies:
            epochs = np.zeros_like(visits.epochs)
        else:
            epochs = visits.epochs
        below = self._order.visits(np.repeat(epochs, counts), indices(first, counts))
        return below, np.repeat(np.arange(len(packs)), counts)

    def _entries(
        self, examples: list[dict[str, Array]], name: str, totals: Integers
    ) -> Array:
        """The entries of all rows, each pack padded with zeros."""
        spec: ArraySpec = self.spec[name]
        out = np.zeros((len(totals), *spec.shape), spec.dtype)
        flat = np.concatenate([each[name] for each in examples] or [out[:0, 0]])
        begin = 0
        for pack, total in zip(out, totals.tolist(), strict=True):
            pack[:total] = flat[begin : begin + total]
            begin += total
        return out

    def _check(
        self,
        examples: list[dict[str, Array]],
        rows: list[int],
        lengths: Integers,
        totals: Integers,
    ) -> None:
        """Checks rows that maps may have changed.

        Raises:
            LeafError: When one is no sparse row, or a pack has more entries than it has room for; names it.
        """
        dtype = self._example[VALUES].dtype
        columns = self._sizes.columns
        for row, example, length in zip(
            rows, examples, lengths.tolist(), strict=True
        ):
            numbers = example[INDICES]
            values = example[VALUES]
            if values.shape != (length,) or values.dtype != dtype:
                raise LeafError(
                    f"row {row} has {length} indices and values of "
                    f"{values.dtype}{list(values.shape)}; return {dtype}[{length}]"
                )
            wrong = numbers[(numbers < 0) | (numbers >= columns)]
            if len(wrong):
                raise LeafError(
                    f"row {row} has an entry in column {wrong[0]}, but columns are at "
                    f"least 0 and below {columns}; correct the map before, or pass "
                    "more: pack_sparse(data, columns=…)"
                )
        if totals.max(initial=0) > self._sizes.entries:
            raise LeafError(
                f"rows {rows[0]} to {rows[-1]} have {totals.max()} entries in a pack "
                f"of {self._sizes.entries}, more than when they were packed; maps must "
                "return as many on every read: call pack_sparse() again, and apply "
                "random maps after it"
            )
