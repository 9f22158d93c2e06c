"""Packs of sparse rows: their entries one after the other, in a budget of fixed size."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from loadax.composition.grouped import GroupedSource
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.core.spec import spec_of, stack
from loadax.core.tree import map_leaves
from loadax.errors import LeafError
from loadax.packing.sparse_plan import PLAN_VERSION, plan_packs
from loadax.plan.fixed_part import describe_first_epoch
from loadax.plan.order import check_fixed_rows
from loadax.protocols import Array, Order
from loadax.reader import Reader
from loadax.row_index.build import scan_options
from loadax.row_index.integers import integers_of
from loadax.sources.sparse.source import INDICES, VALUES

LENGTHS = "lengths"
ROW_MASK = "row_mask"


@final
@dataclass(frozen=True)
class Fill:
    """Makes a pack of a list of sparse rows, for `Dataset.map`.

    Args:
        rows: Most rows of a pack.
        entries: Most entries of a pack.
        columns: Columns of the matrix.
    """

    rows: int
    entries: int
    columns: int

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns a pack.

        Raises:
            LeafError: When a row is no sparse row, or there are more entries than a pack has room for.
        """
        numbers = np.concatenate([example[INDICES] for example in examples])
        values = np.concatenate([example[VALUES] for example in examples])
        lengths = np.array([len(example[INDICES]) for example in examples], np.int32)
        wrong = numbers[(numbers < 0) | (numbers >= self.columns)]
        if len(wrong):
            raise LeafError(
                f"a row has an entry in column {wrong[0]}, but columns are at least 0 "
                f"and below {self.columns}; correct the map before, or pass more: "
                "pack_sparse(data, columns=…)"
            )
        if any(len(each[VALUES]) != len(each[INDICES]) for each in examples):
            raise LeafError(
                "a row has other numbers of 'indices' and 'values'; return as many"
            )
        if len(numbers) > self.entries:
            raise LeafError(
                f"{count_text(len(examples), 'row')} have "
                f"{count_text(len(numbers), 'entry', 'entries')}, more than the "
                f"{self.entries} that they were packed for; maps must return as "
                "many on every read: call pack_sparse() again, and apply random "
                "maps after it"
            )
        # of two bytes, if that is enough
        narrow = np.uint16 if self.columns <= 1 << 16 else np.int32
        beside = [dict(example) for example in examples]
        for leaves in beside:
            del leaves[INDICES], leaves[VALUES]
        stacked = stack(beside, spec_of(beside[0]), range(len(beside)))
        own = {
            INDICES: _filled(numbers.astype(narrow), self.entries),
            VALUES: _filled(values, self.entries),
            LENGTHS: _filled(lengths, self.rows),
            ROW_MASK: np.arange(self.rows) < len(examples),
        }
        for name in own.keys() & beside[0].keys():
            raise LeafError(
                f"pack_sparse() adds {name!r}, which rows have; rename it: "
                f".rename({{{name!r}: 'own_{name}'}})"
            )
        return own | map_leaves(lambda leaf: _filled(leaf, self.rows), stacked)


def _filled(values: Array, length: int) -> Array:
    """An array of a length that begins with these values, and ends in zeros."""
    out = np.zeros((length, *values.shape[1:]), values.dtype)
    out[: len(values)] = values
    return out


def pack_rows(
    reader: Reader, order: Order, rows: int, most: int | None, columns: int
) -> tuple[GroupedSource, Fill]:
    """Groups sparse rows, and the map that makes packs of groups; see `loadax.pack_sparse`."""
    check_fixed_rows(order, "pack_sparse()")
    positions = np.arange(order.size)
    visited = order.visits(np.zeros_like(positions), positions).rows
    lengths = reader.lengths(visited) if order.size else None
    if lengths is None:
        options = scan_options(None, None, None, None)
        lengths = integers_of(
            "pack_sparse", "rows", _count_entries, [""], reader, order, options
        )[:, 0]
    bounds, entries = plan_packs(lengths, rows, most, visited)
    described: list[Any] = ["sparse packs", PLAN_VERSION, [rows, entries, columns]]
    described += [
        digest_values(lengths),
        describe_first_epoch(order),
        reader.describe(),
    ]
    groups = GroupedSource(reader, order, bounds, positions, described)
    return groups, Fill(rows, entries, columns)


def _count_entries(example: Any) -> int:
    """Number of entries of a sparse row.

    Raises:
        LeafError: When it is none; says what to write.
    """
    if not isinstance(example, dict) or not {INDICES, VALUES} <= example.keys():
        raise LeafError(
            "a row is not a dict with 'indices' and 'values'; open sparse rows with "
            "loadax.from_sparse(data)"
        )
    return len(example[INDICES])
