"""Groups rows into bins under budgets: takes or measures their sizes, and plans the bins as those of packed rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadax.composition.grouped import GroupedSource
from loadax.core.arguments import choice, integer
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.kept.index_folder import Entry, IndexFolder, cached
from loadax.packing.pack_options import WINDOW, WINDOW_BY_LEAF
from loadax.plan.fixed_part import describe_first_epoch
from loadax.plan.pack import ALL, PACK_VERSION, PackOptions, check_arrays, plan_arrays
from loadax.protocols import Integers, Order
from loadax.reader import Reader
from loadax.row_index.build import Options
from loadax.row_index.integers import integers_of

_MOST = (1 << 31) - 1  # plans have int32 sizes


def group_options(
    budgets: Any, method: Any, long: Any, window: Any, most_rows: Any
) -> PackOptions:
    """The arguments of `Dataset.group` as options of a plan, with the budgets by ascending name.

    Raises:
        ArgumentError: When one can't be used.
    """
    if isinstance(budgets, Mapping) and budgets:
        limits = {
            name: integer(f"budgets[{name!r}]", budgets[name], 1, _MOST)
            for name in sorted(budgets)
        }
    else:
        limits = {
            ALL: integer(
                "budgets",
                budgets,
                1,
                _MOST,
                "an int of 1 or more, or a dict of them by name",
            )
        }
    choice("method", method, ("best_fit", "first_fit"))
    choice(
        "long",
        long,
        ("error", "drop"),
        "'error' or 'drop': what to do with rows larger than a budget",
    )
    if ALL in limits:
        default = WINDOW
    else:
        default = WINDOW_BY_LEAF
    window = integer("window", default if window is None else window, 1)
    if most_rows is None:
        most = None
    else:
        most = integer("most_rows", most_rows, 1)
    return PackOptions(limits, method, long, window, most_documents=most)


def group(
    reader: Reader,
    order: Order,
    plan_options: PackOptions,
    given: Any,
    options: Options,
) -> GroupedSource:
    """Groups the rows that a reader returns in an order; see `Dataset.group`."""
    sizes = integers_of(
        "group", "sizes", given, [*plan_options.seq_lens], reader, order, options
    )
    sizes[~sizes.any(axis=1)] = 1  # a plan leaves out what is empty
    _check_sizes(sizes, plan_options, order)
    digest = digest_values(sizes)
    arrays = cached(
        None if options.index is None else IndexFolder(options.index),
        f"group-{plan_options.name}",
        lambda: {"sizes": digest, "version": PACK_VERSION},
        lambda entry: check_arrays(entry.arrays, sizes, plan_options),
        lambda: Entry(plan_arrays(sizes, plan_options), {}),
    ).arrays
    described = [
        "group",
        PACK_VERSION,
        *plan_options.described,
        digest,
        describe_first_epoch(order),
        reader.describe(),
    ]
    return GroupedSource(
        reader, order, arrays["bounds"], arrays["documents"], described
    )


def _check_sizes(sizes: Integers, options: PackOptions, order: Order) -> None:
    fits = (sizes <= options.sizes).all(axis=1)
    if fits.all() or (options.long == "drop" and fits.any()):
        return
    position = int(np.argmin(fits))
    row = order.visits(np.zeros(1, np.int64), np.array([position])).rows[0]
    what = (
        f"row {row} has size {str(sizes[position].tolist())[1:-1]}, larger than "
        f"budgets={options.seq_len}, as are "
    )
    if options.long == "drop":
        remedy = "pass larger ones"
    else:
        remedy = "pass larger ones, or long='drop' to leave such rows out"
    raise ArgumentError(
        f"{what}{np.count_nonzero(~fits) - 1} others of "
        f"{count_text(len(sizes), 'row')}; {remedy}",
        argument="budgets",
    )
