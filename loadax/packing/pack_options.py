"""The arguments of `Dataset.pack`, checked."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from loadax.core.arguments import choice, integer
from loadax.errors import ArgumentError
from loadax.plan.pack import ADDED, ALL, Long, Method, PackOptions

WINDOW = 1 << 20  # default number of documents that are packed together
WINDOW_BY_LEAF = 1 << 12  # fewer, since each document is compared with all open rows


def pack_options(
    seq_len: Any,
    method: Any,
    long: Any,
    window: Any,
    align: Any,
    most_documents: Any,
    bos: Any,
    shift: bool,
    offsets: Any,
    add: Any,
    missing: Any,
) -> PackOptions:
    """The arguments of `Dataset.pack` as options.

    Raises:
        ArgumentError: When one can't be used, alone or beside the others.
    """
    by_leaf = isinstance(seq_len, Mapping)
    seq_lens, leaves = _seq_lens(seq_len)
    offsets = _offsets(offsets, by_leaf, bos)
    if shift and by_leaf:
        what = "targets='shift' is for rows of one length"
        raise ArgumentError(
            f"{what}; pass seq_len as an int, or shift documents in a map"
        )
    align = integer("align", align, 1)
    if most_documents is None:
        most = None
    else:
        most = integer("most_documents", most_documents, 1)
    _check_method(method, long, by_leaf)
    if method == "split":
        _check_split(long, window, align, most)
    for name, length in seq_lens.items():
        if by_leaf:
            argument = f"seq_len[{name!r}]"
        else:
            argument = "seq_len"
        if length % align:
            raise ArgumentError(
                f"align={align} must divide {argument}={length}; pass a divisor"
            )
        if length >= 1 << 31:
            raise ArgumentError(f"{argument}={length}: pass less than 2^31")
    if method == "split":
        default = 0
    elif by_leaf:
        default = WINDOW_BY_LEAF
    else:
        default = WINDOW
    if window is None:
        window = default
    else:
        window = integer("window", window, 1)
    begun = bos is not None
    missing = _missing(missing, offsets, seq_lens)
    return PackOptions(
        seq_lens,
        method,
        long,
        window,
        align,
        most,
        begun,
        shift,
        leaves,
        offsets,
        _added(add),
        missing,
    )


def _seq_lens(seq_len: Any) -> tuple[dict[str, int], dict[str, str]]:
    """Entries of a row for each budget, and the budgets of further leaves that share one."""
    if not isinstance(seq_len, Mapping):
        return {ALL: integer("seq_len", seq_len, 1)}, {}
    if not seq_len:
        raise ArgumentError(
            "seq_len={}: pass a length for each leaf of the documents"
        )
    given = {
        key if isinstance(key, tuple) else (key,): length
        for key, length in seq_len.items()
    }
    names = [name for key in given for name in key]
    if len(set(names)) < len(names) or not all(given):
        what = f"seq_len={seq_len} names a leaf twice, or none"
        raise ArgumentError(
            f"{what}; pass each leaf once, alone or in a tuple of leaves"
        )
    seq_lens = {
        key[0]: integer(f"seq_len[{key[0]!r}]", length, 1)
        for key, length in given.items()
    }
    return seq_lens, {name: key[0] for key in given for name in key[1:]}


def _offsets(offsets: Any, by_leaf: bool, bos: Any) -> dict[str, str]:
    if offsets is None:
        return {}
    if not isinstance(offsets, Mapping):
        what = (
            f"offsets={offsets!r}: pass a dict of the budget that a leaf is an index "
            "of"
        )
        raise ArgumentError(f"{what}, such as {{'senders': 'nodes'}}")
    if not by_leaf or bos is not None:
        what = f"offsets={offsets!r} is for a length for each leaf, and without bos"
        raise ArgumentError(f"{what}; pass seq_len as a dict, and leave bos out")
    return dict(offsets)


def _missing(
    missing: Any, offsets: dict[str, str], seq_lens: dict[str, int]
) -> int | None:
    if missing is None:
        return None
    value = integer(
        "missing",
        missing,
        None,
        remedy="the value of indices that stays as it is, such as -1",
    )
    if not offsets:
        raise ArgumentError(
            f"missing={missing!r} is for leaves of indices; name them in offsets=, "
            "or leave it out"
        )
    largest = max(seq_lens.get(budget, 0) for budget in offsets.values()) - 1
    if 0 <= value <= largest:
        raise ArgumentError(
            f"missing={value} may be an index, of up to {largest}; pass another "
            "value, such as -1"
        )
    return value


def _added(add: Any) -> tuple[str, ...]:
    if (
        isinstance(add, str)
        or not isinstance(add, Sequence)
        or not all(name in ADDED for name in add)
    ):
        raise ArgumentError(
            f"add={add!r}: pass a tuple of some of {ADDED}, such as ('segment_ids',)"
        )
    return tuple(name for name in ADDED if name in add)


def _check_method(method: Any, long: Any, by_leaf: bool) -> None:
    if by_leaf:
        never = "with a length for each leaf, documents are never cut"
        choice(
            "method",
            method,
            ("best_fit", "first_fit"),
            f"'best_fit' or 'first_fit': {never}",
        )
        choice("long", long, ("error", "drop"), f"'error' or 'drop': {never}")
        return
    methods = (
        "'split' (documents are cut), 'best_fit' or 'first_fit' (documents are not "
        "cut)"
    )
    choice("method", method, get_args(Method), methods)
    choice(
        "long",
        long,
        get_args(Long),
        "'error', 'cut' or 'drop': what to do with documents longer than seq_len",
    )


def _check_split(
    long: Any, window: Any, align: int, most_documents: int | None
) -> None:
    """Refuses what is for documents that are fitted."""
    given = {"long": (long, "error"), "window": (window, None), "align": (align, 1)}
    for name, (value, default) in {
        **given,
        "most_documents": (most_documents, None),
    }.items():
        if value != default:
            what = (
                f"{name}={value!r} is for best_fit and first_fit: method='split' "
                "fills every row"
            )
            raise ArgumentError(f"{what}; leave it out", argument=name)
