"""Where a run is, in a few integers that are the same on every host."""

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from loadax.dataset import Dataset
from loadax.errors import StateError
from loadax.plan.batches import BatchPlan
from loadax.plan.mix import Mixed

VERSION = 1
_FIELDS = ("version", "step", "batch_size", "epoch", "position", "order")


OrderHash: TypeAlias = Callable[[int, int], str]
"""A hash of what decides the order before a position of an epoch."""


def order_hash(dataset: Dataset) -> OrderHash:
    """A hash of what decides the order: lengths, element spec, verbs, seeds, and the version of the order's algorithm.

    Not of contents, paths, times or functions: the same data elsewhere, or a corrected map, goes on where it was. Nor of what a mixture has
    scheduled for later than the position: that may be changed.
    """
    order, described = dataset.order, dataset.describe()

    def before(epoch: int, position: int) -> str:
        if not isinstance(order, Mixed):
            return _hash(described)
        begin = epoch * order.size
        past = order.until(begin + position)
        # What is scheduled for an epoch's very first example is not of the past, but says where the epoch before it ends.
        return _hash([described[0], past.describe(), *described[2:], *([begin] if epoch else [])])

    return before


@lru_cache(maxsize=4)
def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hash(described: Any) -> str:
    return _hash_text(json.dumps(described))


def make_state(plan: BatchPlan, order: OrderHash, step: int) -> dict[str, Any]:
    """The state before `step`: JSON-able, equal on all hosts.

    Where steps are left out, it is right behind the last one that was handed out, so that which ones are left out next may still be changed.
    """
    number = plan.skips.number(step - 1) + 1 if step else 0
    epoch, position = plan.place_of(number)
    fields = (VERSION, step, plan.batch_size_of(number), epoch, position, order(epoch, position))
    skipped = _skipped(plan, number)
    return dict(zip(_FIELDS, fields, strict=True)) | ({"skipped": skipped} if skipped else {})


def _skipped(plan: BatchPlan, number: int) -> list[list[int]]:
    """What is left out before a step: each time from an (epoch, position) to another, which other batch sizes have as well."""
    found = []
    for start, stop in plan.skips.before(number).ranges:
        epoch, position = plan.place_of(stop - 1)
        found.append([*plan.place_of(start), epoch, min(position + plan.batch_size_of(stop - 1), plan.order.size)])
    return found


def step_of(plan: BatchPlan, order: OrderHash, start: Any) -> int:
    """The step at which a run goes on from `start`, a step or a state.

    Raises:
        StateError: when it is no state, or one of another dataset, or its position lies inside a batch of this size; names
            the field.
    """
    if isinstance(start, dict):
        return _checked(plan, _restored(plan, order, start))
    if isinstance(start, bool) or not hasattr(start, "__index__"):
        hint = "; it is text, so json.loads it first" if isinstance(start, str | bytes) else ""
        raise StateError(f"start={start!r}: pass a step (an int), or what get_state() gave{hint}")
    return _checked(plan, int(start.__index__()))


def _restored(plan: BatchPlan, order: OrderHash, state: dict[str, Any]) -> int:
    missing = [name for name in _FIELDS if name not in state]
    if missing:
        raise StateError(f"the state has no {missing[0]!r}: {state!r} is not what get_state() gave")
    if state["version"] != VERSION:
        raise StateError(
            f"the state's 'version' is {state['version']!r}, this loadax reads {VERSION}; restore it with the loadax that saved it"
        )
    for name in ("step", "batch_size", "epoch", "position"):
        if isinstance(state[name], bool) or not isinstance(state[name], int) or state[name] < 0:
            raise StateError(f"the state's {name!r} is {state[name]!r}; it must be an int of at least 0")
    mine = order(state["epoch"], state["position"])
    if state["order"] != mine:
        raise StateError(
            f"the state's 'order' is {state['order']!r}, this dataset's is {mine!r}: its length, element spec, verbs, seeds or weights are "
            "not those of the run that was saved; build the dataset as it was then"
        )
    # Not from 'step': with another remainder an epoch has another number of steps.
    number, between = plan.step_at(state["epoch"], state["position"])
    if between:
        raise StateError(
            f"the state's 'position' is {state['position']}, inside a batch of batch_size={plan.batch_size_of(number)} (it was saved with "
            f"{state['batch_size']}); pass a batch_size that divides {state['position']}, or save at such a step"
        )
    past, here = state.get("skipped", []), _skipped(plan, number)
    if past != here:
        raise StateError(
            f"the state's 'skipped' is {past!r}, and this loader leaves out {here!r} before it (from epoch and position to epoch and position): "
            "leave out with skip() the steps that the saved run left out before the state, and otherwise only later ones"
        )
    return plan.skips.left(number)


def _checked(plan: BatchPlan, step: int) -> int:
    if step < 0 or (plan.num_steps is not None and step > plan.num_steps):
        total = "endlessly many steps" if plan.num_steps is None else f"{plan.num_steps} steps with num_epochs={plan.num_epochs}"
        raise StateError(f"start is step {step}, but there are {total}, counted from 0; pass a larger num_epochs to train longer")
    return step
