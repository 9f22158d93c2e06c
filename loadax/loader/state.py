"""State of a run: a few integers that are equal on every host."""

from typing import Any

from loadax.core.arguments import integer, shown
from loadax.errors import ArgumentError, StateError
from loadax.loader.order_hash import (
    FIELDS,
    KEY_SEED,
    VERSION,
    WEIGHTS,
    WEIGHTS_VERSION,
    OrderHash,
    short_hash,
)
from loadax.plan.steps import Steps, skipped_ranges


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
    skipped = skipped_ranges(plan, whole_step)
    state: dict[str, Any] = dict(zip(FIELDS, fields, strict=True))
    state["verbs"] = order.parts(epoch, position)
    if order.key_seed is not None:
        state[KEY_SEED] = order.key_seed
    if order.weights:
        state["version"] = WEIGHTS_VERSION
        state[WEIGHTS] = [*order.weights]
    if skipped:
        state["skipped"] = skipped
    if order.contents is not None:
        state |= order.contents.fields()
    return state


def step_of(plan: Steps, order: OrderHash, start: Any) -> int:
    """The step of `start`, a step or a state, or the states of one step that several processes saved.

    Raises:
        StateError: If it is not a state, belongs to another dataset, or its position is inside a batch of this size;
            names the field.
    """
    if type(start) is not int:
        from loadax.loader.saved_state import step_of_state

        start = step_of_state(plan, order, start)
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


def _checked(plan: Steps, step: int) -> int:
    if step < 0:
        raise StateError(
            f"start is step {shown(step)}, but steps are counted from 0; pass 0 for "
            "the first one"
        )
    if step > plan.end:
        end = f"ends before step {plan.num_steps} with num_epochs={plan.num_epochs}"
        if plan.num_steps is None:
            end = "has infinitely many steps"
        raise StateError(
            f"start is step {shown(step)}, but the run {end}, counted from 0; pass a "
            "larger num_epochs to train longer"
        )
    return step
