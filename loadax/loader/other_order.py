"""Says how the order of a saved state differs from that of a loader, and what to do about it."""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from loadax.core.arguments import shown
from loadax.errors import StateError
from loadax.loader.order_hash import OrderHash, hash_of, short_hash
from loadax.plan.fixed_part import as_before, parts_in
from loadax.plan.mix import EVEN, Mixed
from loadax.plan.order import depth_first
from loadax.plan.stream import StreamOrder
from loadax.protocols import Order
from loadax.reader import streams_of

_MOST_LANES = 1 << 14  # that are tried to tell how many a saved run had
_PART = 3  # entries of a slice of a shuffle


def other_order(
    order: OrderHash, state: Mapping[str, Any], expected: str | int
) -> StateError:
    """The error for a state of another order.

    Args:
        order: Hash of the loader's order.
        state: The state, with all of its fields.
        expected: Its field "order", had it been of this loader.
    """
    past = state["epoch"], state["position"]
    saved = state["order"]
    before, calls = _before_fixed_parts(order, *past)
    if calls and saved == (before if isinstance(saved, str) else short_hash(before)):
        return StateError(
            f"the state's 'order' is {shown(saved)}, of a loader whose part of the "
            "data had other rows in every epoch, and here it has the same ones: to "
            f"go on as before, pass {' and '.join(dict.fromkeys(calls))} in its "
            "place; to hold out rows, begin another run, since those rows were "
            "trained on"
        )
    verbs = state.get("verbs")
    return StateError(
        f"the state's 'order' is {shown(saved)}, this dataset's is {expected!r}: "
        f"{_difference(verbs, order.parts(*past), texts_of(order, *past))}; "
        f"{_remedy(_lanes_of(order, verbs))}{_former_version(order)}"
    )


def texts_of(order: OrderHash, epoch: int, position: int) -> list[str]:
    """The parts of an order as readable text; as `OrderHash.parts`."""
    _, _, maps, leaves = order.dataset.order_facts
    shown = ", ".join(
        f"{path or 'one array'}: {dtype}{shape}" for path, shape, dtype in leaves
    )
    return [
        *order.past(epoch, position).text(),
        *map(_map_text, maps),
        f"an example, with {shown}",
    ]


def _lanes_of(order: OrderHash, saved: Any) -> int | None:
    """The number of lanes of the stream whose parts a state has, if it had another one than this; else None."""
    stream = order.dataset.order
    if (
        not isinstance(stream, StreamOrder)
        or not isinstance(saved, list)
        or not saved
    ):
        return None
    verb, lanes, *rest = stream.describe()[0]
    others = (number for number in range(1, _MOST_LANES) if number != lanes)
    return next(
        (
            number
            for number in others
            if short_hash(hash_of([verb, number, *rest])) == saved[0]
        ),
        None,
    )


def _former_version(order: OrderHash) -> str:
    """End of the message: what a run that began with an earlier loadax passes."""
    if any(map(_is_even, depth_first(order.dataset.order))):
        verbs = ["mix()"]
    else:
        verbs = []
    streams = streams_of(order.dataset.reader)
    verbs += (
        ["zip() and concat()"]
        if not verbs and any(stream.parts for stream in streams)
        else []
    )
    verbs += ["chain()"] if any(stream.phase for stream in streams) else []
    if not verbs:
        return ""
    where = " and to ".join(verbs)
    return (
        ": if an earlier loadax saved it, whose defaults were others, pass version=1 "
        f"to {where}"
    )


def _before_fixed_parts(
    order: OrderHash, epoch: int, position: int
) -> tuple[str, list[str]]:
    """The hash if parts had other rows in every epoch, as slices once had, and the calls that make such parts."""
    version, _, *rest = order.dataset.order_facts
    described = [version, order.past(epoch, position).describe(), *rest]
    return hash_of(
        [*as_before(described), *order.schedule(epoch, position)]
    ), parts_in(described)


def _is_even(order: Order) -> bool:
    return isinstance(order, Mixed) and order.version == EVEN


def _remedy(lanes: int | None) -> str:
    if lanes is None:
        return "build the dataset as it was then"
    return (
        f"it had {lanes} lane{'s' * (lanes != 1)}: pass lanes={lanes} to what opens "
        "the stream, as it was then"
    )


def _difference(saved: Any, hashes: list[int], texts: list[str]) -> str:
    """Text that names the verbs that differ from the saved run, if the state tells."""
    whole = (
        "its length, element spec, verbs, seeds or weights differ from the saved run"
    )
    # The state is of an older loadax, or a mixture is at another position of its schedule.
    if not isinstance(saved, list) or saved == hashes:
        return whole
    differing = [
        index
        for index, (one, other) in enumerate(zip_longest(saved, hashes))
        if one != other
    ]
    first = differing[0]
    if first < len(texts):
        here = texts[first]
    else:
        here = ""
    if first:
        behind = f" after {texts[first - 1]}"
    else:
        behind = ""
    more = len(saved) - len(hashes)
    if more > 0 and saved[first + more :] == hashes[first:]:
        return (
            "the saved run had "
            f"{'one more verb' if more in (1, _PART) else f'{more} more verbs'}{behind}"
        )
    if more < 0 and saved[first:] == hashes[first - more :]:
        return f"{''.join(texts[first : first - more])} was not in the saved run"
    if len(saved) == len(hashes) and len(differing) > 1:
        return (
            f"the parts {', '.join(f'`{texts[index]}`' for index in differing)} "
            "differ from the saved run"
        )
    return f"the part{f' `{here}`' if here else behind} differs from the saved run"


def _map_text(described: Any) -> str:
    match described:
        case ["map" | "map_batch" as verb, rng, seed, *options]:
            arguments = [f"rng=True, seed={seed}"] * rng + [
                f"{option}=True" for option in options
            ]
            return f"{verb}({', '.join(arguments)})"
        case [verb, *arguments]:
            return f"{verb}({', '.join(map(str, arguments))})"
    return str(described)
