"""State of a run: a few integers that are equal on every host."""

from collections.abc import Mapping
from typing import Any

from loadax.core.arguments import LARGEST, MOST_POSITIONS, integer, shown
from loadax.errors import ArgumentError, StateError
from loadax.loader.order_hash import OrderHash, short_hash
from loadax.plan.steps import Steps

VERSION = 1
LEASE = "lease"  # field of what a lease adds
_KEY_SEED = "key_seed"  # field of runs with random keys, of this loadax or later
_FIELDS = ("version", "step", "batch_size", "epoch", "position", "order")


def make_state(plan: Steps, order: OrderHash, step: int) -> dict[str, Any]:
    """The state before `step`: JSON-serialisable, and equal on all hosts.

    With skipped steps, it is directly after the last step that was handed out, so that later skips may still change.
    """
    if step:
        whole_step = plan.skips.whole_step(step - 1) + 1
    else:
        whole_step = 0
    epoch, position = plan.position_of_whole_step(whole_step)
    fields = (
        VERSION,
        step,
        plan.batch_size_of(whole_step),
        epoch,
        position,
        short_hash(order(epoch, position)),
    )
    skipped = _skipped(plan, whole_step)
    state: dict[str, Any] = dict(zip(_FIELDS, fields, strict=True))
    state["verbs"] = order.parts(epoch, position)
    if order.key_seed is not None:
        state[_KEY_SEED] = order.key_seed
    if skipped:
        state["skipped"] = skipped
    if order.contents is not None:
        state |= order.contents.fields()
    return state


def _skipped(plan: Steps, whole_step: int) -> list[list[int]]:
    """Skipped ranges before a step, as (epoch, position, epoch, position), which don't depend on the batch size."""
    ranges = []
    for start, stop in plan.skips.before(whole_step).ranges:
        epoch, position = plan.position_of_whole_step(stop - 1)
        ranges.append(
            [
                *plan.position_of_whole_step(start),
                epoch,
                min(position + plan.batch_size_of(stop - 1), plan.order.size),
            ]
        )
    return ranges


def step_of(plan: Steps, order: OrderHash, start: Any) -> int:
    """The step of `start`, a step or a state, or the states of one step that several processes saved.

    Raises:
        StateError: If it is not a state, belongs to another dataset, or its position is inside a batch of this size;
            names the field.
    """
    if (
        isinstance(start, list | tuple)
        and start
        and all(isinstance(state, Mapping) for state in start)
    ):
        steps = [step_of(plan, order, state) for state in start]
        if len({*steps}) > 1:
            raise StateError(
                f"start has states of the steps {sorted({*steps})}; pass those saved "
                "at one step"
            )
        return steps[0]
    if isinstance(start, Mapping):
        if LEASE in start:
            raise StateError(
                "start is the state of a lease, with unfinished rows; pass it to "
                "loader.lease()"
            )
        return _checked(
            plan,
            _restored(
                plan, order, {key: plain(value) for key, value in start.items()}
            ),
        )
    return _checked(plan, plain_step(start))


def plain_step(start: Any) -> int:
    """The step of `start`, if it is not a state.

    Raises:
        StateError: If it is not an int.
    """
    try:
        return integer("start", start, most=None)
    except ArgumentError:
        if isinstance(start, str | bytes):
            hint = "; this is text, so json.loads it first"
        else:
            hint = ""
        raise StateError(
            f"start={shown(start)}: pass a step (an int), or a state of "
            f"get_state(){hint}"
        ) from None


def plain(value: Any) -> Any:
    """A field as in `get_state`: checkpoint libraries restore ints as 0-d arrays, and lists as tuples or arrays."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return value.tolist()
    return value


def _restored(plan: Steps, order: OrderHash, state: dict[str, Any]) -> int:
    missing = [name for name in _FIELDS if name not in state]
    if missing:
        raise StateError(
            f"the state has no {missing[0]!r}: {shown(state)}; pass a state of "
            "get_state()"
        )
    if type(state["version"]) is not int or state["version"] != VERSION:
        raise StateError(
            f"the state's 'version' is {shown(state['version'])}, this loadax reads "
            f"{VERSION}; restore it with the loadax that saved it"
        )
    for name in ("step", "batch_size", "epoch", "position"):
        if type(state[name]) is not int or not 0 <= state[name] <= LARGEST:
            raise StateError(
                f"the state's {name!r} is {shown(state[name])}; it must be an int "
                "from 0 to 2**63 - 1"
            )
    past = state["epoch"], state["position"]
    digest = order(*past)
    # An older loadax saved the whole digest.
    expected = digest if isinstance(state["order"], str) else short_hash(digest)
    if state["order"] != expected:
        from loadax.loader.other_order import other_order

        raise other_order(order, state, expected)
    if (saved := state.get(_KEY_SEED, order.key_seed)) != order.key_seed:
        raise StateError(
            f"the state's {_KEY_SEED!r} is {shown(saved)}, this loader's is "
            f"{order.key_seed}, so random keys would not go on as in the saved run; "
            f"pass key_seed={shown(saved)}"
        )
    if state["position"] >= plan.order.size:
        raise StateError(
            f"the state's 'position' is {state['position']}, but an epoch has only "
            f"{plan.order.size} positions, counted from 0; pass a state of "
            "get_state()"
        )
    # Not from 'step': with another remainder, an epoch has a different number of steps.
    whole_step, between = plan.step_at(state["epoch"], state["position"])
    if whole_step > MOST_POSITIONS:
        raise StateError(
            f"the state's 'epoch' is {state['epoch']}, which no run reaches; pass a "
            "state of get_state()"
        )
    if between:
        raise StateError(
            f"the state's 'position' is {state['position']}, inside a batch of "
            f"batch_size={plan.batch_size_of(whole_step)} (it was saved with "
            f"{state['batch_size']}); pass a batch_size that divides "
            f"{state['position']}, or resume from a state at such a position"
        )
    skipped = state.get("skipped", [])
    here = _skipped(plan, whole_step)
    if skipped != here:
        raise StateError(
            f"the state's 'skipped' is {skipped!r}, but this loader skips {here!r} "
            "before it (from epoch and position to epoch and position); skip() the "
            "same steps before the state as the saved run, and otherwise only later "
            "ones"
        )
    if order.contents is not None:
        order.contents.check(state)
    return plan.skips.left(whole_step)


def _checked(plan: Steps, step: int) -> int:
    if step < 0:
        raise StateError(
            f"start is step {shown(step)}, but steps are counted from 0; pass 0 for "
            "the first one"
        )
    if step > plan.end:
        total = f"{plan.num_steps} steps with num_epochs={plan.num_epochs}"
        if plan.num_steps is None:
            total = "infinitely many steps"
        raise StateError(
            f"start is step {shown(step)}, but there are {total}, counted from 0; "
            "pass a larger num_epochs to train longer"
        )
    return step
