"""Saved states: the step of a state that a user passes, and what is wrong with it."""

from collections.abc import Mapping
from typing import Any

from loadax.core.arguments import LARGEST, MOST_POSITIONS, shown
from loadax.core.formatting import count_text
from loadax.errors import StateError
from loadax.loader.order_hash import (
    FIELDS,
    KEY_SEED,
    LEASE,
    VERSION,
    WEIGHTS,
    WEIGHTS_VERSION,
    OrderHash,
    short_hash,
)
from loadax.loader.other_order import other_order
from loadax.plan.steps import Steps, skipped_ranges


def step_of_state(
    plan: Steps,
    order: OrderHash,
    start: Any,
) -> Any:
    """The step of a state, or of the states of one step that several processes saved; what is none is unchanged.

    Raises:
        StateError: As of `loadax.loader.state.step_of`.
    """
    if (
        isinstance(start, list | tuple)
        and start
        and all(isinstance(state, Mapping) for state in start)
    ):
        steps = [step_of_state(plan, order, state) for state in start]
        if len({*steps}) > 1:
            raise StateError(
                f"start has states of the steps {sorted({*steps})}; pass those saved "
                "at one step"
            )
        return steps[0]
    if not isinstance(start, Mapping):
        return start
    if LEASE in start:
        raise StateError(
            "start is the state of a lease, with unfinished rows; pass it to "
            "loader.lease()"
        )
    return _restored(plan, order, {key: plain(value) for key, value in start.items()})


def plain(value: Any) -> Any:
    """A field as in `get_state`: checkpoint libraries restore ints as 0-d arrays, and lists as tuples or arrays."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return value.tolist()
    return value


def _restored(
    plan: Steps,
    order: OrderHash,
    state: dict[str, Any],
) -> int:
    missing = [name for name in FIELDS if name not in state]
    if missing:
        raise StateError(
            f"the state has no {missing[0]!r}: {shown(state)}; pass a state of "
            "get_state()"
        )
    version = state["version"]
    if type(version) is not int or version not in (VERSION, WEIGHTS_VERSION):
        raise StateError(
            f"the state's 'version' is {shown(version)}, this loadax reads {VERSION} "
            f"and {WEIGHTS_VERSION}; restore it with the loadax that saved it"
        )
    weights = state.get(WEIGHTS, [])
    if weights and weights != [*order.weights][-len(weights) :]:
        raise StateError(
            f"the state has weights that were set in mid-run, {shown(weights)}; pass "
            "it to the loader of loader.with_weights(state)"
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
        raise other_order(order, state, expected)
    if (saved := state.get(KEY_SEED, order.key_seed)) != order.key_seed:
        raise StateError(
            f"the state's {KEY_SEED!r} is {shown(saved)}, this loader's is "
            f"{order.key_seed}, so random keys would not go on as in the saved run; "
            f"pass key_seed={shown(saved)}"
        )
    if state["position"] >= plan.order.size:
        raise StateError(
            f"the state's 'position' is {state['position']}, but an epoch has only "
            f"{count_text(plan.order.size, 'position')}, counted from 0; pass a "
            "state of get_state()"
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
    if skipped != skipped_ranges(plan, whole_step):
        from loadax.loader.other_skips import other_skips

        raise other_skips(plan, order.dataset, skipped, whole_step)
    if order.contents is not None:
        order.contents.check(state)
    return plan.skips.left(whole_step)
