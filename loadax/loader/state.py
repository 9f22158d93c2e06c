"""State of a run: a few integers that are equal on every host."""

import hashlib
import json
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, final

from loadax.core.arguments import LARGEST, MOST_POSITIONS, integer, shown
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, StateError
from loadax.plan.fixed_part import as_before, parts_in
from loadax.plan.mix import EVEN, Mixed
from loadax.plan.order import depth_first
from loadax.plan.steps import Steps
from loadax.plan.stream import StreamOrder
from loadax.protocols import Order
from loadax.reader import streams_of

VERSION = 1
_MOST_LANES = 1 << 14  # that are tried to tell how many a saved run had
LEASE = "lease"  # field of what a lease adds
_KEY_SEED = "key_seed"  # field of runs with random keys, of this loadax or later
_PART = 3  # entries of a slice of a shuffle
_FIELDS = ("version", "step", "batch_size", "epoch", "position", "order")


@final
class OrderHash:
    """Hashes everything that determines the order before a position of an epoch.

    Includes lengths, element spec, verbs, seeds, and the version of the order's algorithm. Excludes contents, paths,
    times and functions, so that a run can resume with moved data or a corrected map. Also excludes the schedule of a
    mixture after the position, which may be changed.

    Args:
        dataset: The dataset.
        key_seed: Seed of the random keys of its batches, which states have beside the hash. None: there are none.
    """

    def __init__(self, dataset: Dataset, key_seed: int | None = None):
        self._order, self._described = dataset.order, dataset.order_facts
        self.key_seed = key_seed
        self._reader = dataset.reader
        # The last hashes, and what they depend on: only a schedule changes them.
        self._kept: tuple[Any, str, list[int], list[Any]] = (None, "", [], [])

    def __call__(self, epoch: int, position: int) -> str:
        """One hash of all of it, as 16 hexadecimal digits."""
        return self._hashes(epoch, position)[1]

    def parts(self, epoch: int, position: int) -> list[int]:
        """A short hash of each part, to tell which one differs: verbs of the order, maps, and leaves of an example."""
        return [*self._hashes(epoch, position)[2]]

    def texts(self, epoch: int, position: int) -> list[str]:
        """The same parts as readable text."""
        _, _, maps, leaves = self._described
        shown = ", ".join(f"{path or 'one array'}: {dtype}{shape}" for path, shape, dtype in leaves)
        return [*self._past(epoch, position).text(), *map(_map_text, maps), f"an example, with {shown}"]

    def lanes_of(self, saved: Any) -> int | None:
        """The number of lanes of the stream whose parts a state has, if it had another one than this; else None."""
        if not isinstance(self._order, StreamOrder) or not isinstance(saved, list) or not saved:
            return None
        verb, lanes, *rest = self._order.describe()[0]
        others = (number for number in range(1, _MOST_LANES) if number != lanes)
        return next((number for number in others if _short(hash_of([verb, number, *rest])) == saved[0]), None)

    def former_version(self) -> str:
        """End of the message about another order: what a run that began with an earlier loadax passes."""
        verbs = ["mix()"] if any(map(_is_even, depth_first(self._order))) else []
        streams = streams_of(self._reader)
        verbs += ["zip() and concat()"] if not verbs and any(stream.parts for stream in streams) else []
        verbs += ["chain()"] if any(stream.phase for stream in streams) else []
        if not verbs:
            return ""
        where = " and to ".join(verbs)
        return f": if an earlier loadax saved it, whose defaults were others, pass version=1 to {where}"

    def before_fixed_parts(self, epoch: int, position: int) -> tuple[str, list[str]]:
        """The hash if parts had other rows in every epoch, as slices once had, and the calls that make such parts."""
        past = self._past(epoch, position)
        described = [self._described[0], past.describe(), *self._described[2:]]
        *_, schedule = self._hashes(epoch, position)
        return hash_of([*as_before(described), *schedule]), parts_in(described)

    def _hashes(self, epoch: int, position: int) -> tuple[Any, str, list[int], list[Any]]:
        past, depends = self._past(epoch, position), list[Any]()
        if isinstance(past, Mixed) and isinstance(self._order, Mixed):
            # The schedule at the first example of an epoch is not in the past, but it determines where the previous
            # epoch ends.
            depends = [past.segments, *([self._order.begin(epoch)] if epoch else [])]
        kept = self._kept  # which other threads replace
        if kept[0] != depends:
            version, order, maps, leaves = self._described
            order = past.describe() if depends else order
            digest = hash_of([version, order, maps, leaves, *depends[1:]])
            parts = [_short(hash_of(part)) for part in (*order, *maps, ["leaves", leaves])]
            kept = depends, digest, parts, depends[1:]
            self._kept = kept
        return kept

    def _past(self, epoch: int, position: int) -> Order:
        return self._order.until(epoch, position) if isinstance(self._order, Mixed) else self._order


def _is_even(order: Order) -> bool:
    return isinstance(order, Mixed) and order.version == EVEN


def _short(digest: str) -> int:
    """31 bits of a hash: enough to tell one dataset from another, and an int that JSON, and int32, hold."""
    return int(digest, 16) >> 33


def hash_of(described: Any) -> str:
    """Hash of what JSON can hold, as text."""
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def make_state(plan: Steps, order: OrderHash, step: int) -> dict[str, Any]:
    """The state before `step`: JSON-serialisable, and equal on all hosts.

    With skipped steps, it is directly after the last step that was handed out, so that later skips may still change.
    """
    whole_step = plan.skips.whole_step(step - 1) + 1 if step else 0
    epoch, position = plan.position_of_whole_step(whole_step)
    fields = (VERSION, step, plan.batch_size_of(whole_step), epoch, position, _short(order(epoch, position)))
    skipped = _skipped(plan, whole_step)
    state = dict(zip(_FIELDS, fields, strict=True)) | {"verbs": order.parts(epoch, position)}
    if order.key_seed is not None:
        state[_KEY_SEED] = order.key_seed
    return state | ({"skipped": skipped} if skipped else {})


def _skipped(plan: Steps, whole_step: int) -> list[list[int]]:
    """Skipped ranges before a step, as (epoch, position, epoch, position), which don't depend on the batch size."""
    ranges = []
    for start, stop in plan.skips.before(whole_step).ranges:
        epoch, position = plan.position_of_whole_step(stop - 1)
        ranges.append(
            [*plan.position_of_whole_step(start), epoch, min(position + plan.batch_size_of(stop - 1), plan.order.size)]
        )
    return ranges


def step_of(plan: Steps, order: OrderHash, start: Any) -> int:
    """The step of `start`, a step or a state, or the states of one step that several processes saved.

    Raises:
        StateError: If it is not a state, belongs to another dataset, or its position is inside a batch of this size;
            names the field.
    """
    if isinstance(start, list | tuple) and start and all(isinstance(state, Mapping) for state in start):
        steps = [step_of(plan, order, state) for state in start]
        if len({*steps}) > 1:
            raise StateError(f"start has states of the steps {sorted({*steps})}; pass those saved at one step")
        return steps[0]
    if isinstance(start, Mapping):
        if LEASE in start:
            raise StateError("start is the state of a lease, with unfinished rows; pass it to loader.lease()")
        return _checked(plan, _restored(plan, order, {key: plain(value) for key, value in start.items()}))
    return _checked(plan, plain_step(start))


def plain_step(start: Any) -> int:
    """The step of `start`, if it is not a state.

    Raises:
        StateError: If it is not an int.
    """
    try:
        return integer("start", start, most=None)
    except ArgumentError:
        hint = "; this is text, so json.loads it first" if isinstance(start, str | bytes) else ""
        raise StateError(f"start={shown(start)}: pass a step (an int), or a state of get_state(){hint}") from None


def plain(value: Any) -> Any:
    """A field as in `get_state`: checkpoint libraries restore ints as 0-d arrays, and lists as tuples or arrays."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "dtype") and hasattr(value, "tolist") else value


def _restored(plan: Steps, order: OrderHash, state: dict[str, Any]) -> int:
    missing = [name for name in _FIELDS if name not in state]
    if missing:
        raise StateError(f"the state has no {missing[0]!r}: {shown(state)}; pass a state of get_state()")
    if type(state["version"]) is not int or state["version"] != VERSION:
        raise StateError(
            f"the state's 'version' is {shown(state['version'])}, this loadax reads {VERSION}; restore it with the "
            "loadax that saved it"
        )
    for name in ("step", "batch_size", "epoch", "position"):
        if type(state[name]) is not int or not 0 <= state[name] <= LARGEST:
            raise StateError(f"the state's {name!r} is {shown(state[name])}; it must be an int from 0 to 2**63 - 1")
    past = state["epoch"], state["position"]
    digest = order(*past)
    # An older loadax saved the whole digest.
    expected = digest if isinstance(state["order"], str) else _short(digest)
    if state["order"] != expected:
        before, calls = order.before_fixed_parts(*past)
        if calls and state["order"] == (before if isinstance(state["order"], str) else _short(before)):
            raise StateError(
                f"the state's 'order' is {shown(state['order'])}, of a loader whose part of the data had other rows in "
                "every epoch, and here it has the same ones: to go on as before, pass "
                f"{' and '.join(dict.fromkeys(calls))} in its place; to hold out rows, begin another run, since those "
                "rows were trained on"
            )
        raise StateError(
            f"the state's 'order' is {shown(state['order'])}, this dataset's is {expected!r}: "
            f"{_difference(state.get('verbs'), order.parts(*past), order.texts(*past))}; "
            f"{_remedy(order.lanes_of(state.get('verbs')))}{order.former_version()}"
        )
    if (saved := state.get(_KEY_SEED, order.key_seed)) != order.key_seed:
        raise StateError(
            f"the state's {_KEY_SEED!r} is {shown(saved)}, this loader's is {order.key_seed}, so random keys would not "
            f"go on as in the saved run; pass key_seed={shown(saved)}"
        )
    if state["position"] >= plan.order.size:
        raise StateError(
            f"the state's 'position' is {state['position']}, but an epoch has only {plan.order.size} positions, "
            "counted from 0; pass a state of get_state()"
        )
    # Not from 'step': with another remainder, an epoch has a different number of steps.
    whole_step, between = plan.step_at(state["epoch"], state["position"])
    if whole_step > MOST_POSITIONS:
        raise StateError(f"the state's 'epoch' is {state['epoch']}, which no run reaches; pass a state of get_state()")
    if between:
        raise StateError(
            f"the state's 'position' is {state['position']}, "
            f"inside a batch of batch_size={plan.batch_size_of(whole_step)} (it was saved with {state['batch_size']}); "
            f"pass a batch_size that divides {state['position']}, or resume from a state at such a position"
        )
    skipped, here = state.get("skipped", []), _skipped(plan, whole_step)
    if skipped != here:
        raise StateError(
            f"the state's 'skipped' is {skipped!r}, but this loader skips {here!r} before "
            "it (from epoch and position to epoch and position); skip() the same steps before the state as the saved "
            "run, and otherwise only later ones"
        )
    return plan.skips.left(whole_step)


def _remedy(lanes: int | None) -> str:
    if lanes is None:
        return "build the dataset as it was then"
    return f"it had {lanes} lane{'s' * (lanes != 1)}: pass lanes={lanes} to what opens the stream, as it was then"


def _difference(saved: Any, hashes: list[int], texts: list[str]) -> str:
    """Text that names the verbs that differ from the saved run, if the state tells."""
    whole = "its length, element spec, verbs, seeds or weights differ from the saved run"
    # The state is of an older loadax, or a mixture is at another position of its schedule.
    if not isinstance(saved, list) or saved == hashes:
        return whole
    differing = [index for index, (one, other) in enumerate(zip_longest(saved, hashes)) if one != other]
    first = differing[0]
    here = texts[first] if first < len(texts) else ""
    behind = f" after {texts[first - 1]}" if first else ""
    more = len(saved) - len(hashes)
    if more > 0 and saved[first + more :] == hashes[first:]:
        return f"the saved run had {'one more verb' if more in (1, _PART) else f'{more} more verbs'}{behind}"
    if more < 0 and saved[first:] == hashes[first - more :]:
        return f"{''.join(texts[first : first - more])} was not in the saved run"
    if len(saved) == len(hashes) and len(differing) > 1:
        return f"the parts {', '.join(f'`{texts[index]}`' for index in differing)} differ from the saved run"
    return f"the part{f' `{here}`' if here else behind} differs from the saved run"


def _map_text(described: Any) -> str:
    match described:
        case ["map" | "map_batch" as verb, rng, seed, *options]:
            arguments = [f"rng=True, seed={seed}"] * rng + [f"{option}=True" for option in options]
            return f"{verb}({', '.join(arguments)})"
        case [verb, *arguments]:
            return f"{verb}({', '.join(map(str, arguments))})"
    return str(described)


def _checked(plan: Steps, step: int) -> int:
    if step < 0:
        raise StateError(f"start is step {shown(step)}, but steps are counted from 0; pass 0 for the first one")
    if step > plan.end:
        total = f"{plan.num_steps} steps with num_epochs={plan.num_epochs}"
        total = "infinitely many steps" if plan.num_steps is None else total
        raise StateError(
            f"start is step {shown(step)}, but there are {total}, counted from 0; "
            "pass a larger num_epochs to train longer"
        )
    return step
