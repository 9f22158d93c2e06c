"""Weights of a mixture that are set in mid-run: by `it.set_weights`, by a state, or of a loader as a whole.

They are kept as a state has them: lists `[position, weight, …]` with ascending positions of the mixture, counted over
all epochs. The plan of a run, and the hash of its order, follow from those of its loader and that list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, Protocol, Self, TypeVar

from loadax.combine import whole_units
from loadax.core.arguments import LARGEST, integer, shown
from loadax.errors import ArgumentError, StateError
from loadax.loader.order_hash import WEIGHTS, OrderHash
from loadax.loader.phases import KEY, Phases
from loadax.loader.pipeline import BatchPipeline
from loadax.loader.saved_state import plain
from loadax.loader.stretch import Target
from loadax.plan.batches import BatchPlan
from loadax.plan.even import MOST_SLOTS
from loadax.plan.mix import Mixed, Segment
from loadax.plan.skips import Skips
from loadax.plan.steps import Steps


class _Phase(Protocol):
    """A phase of a loader."""

    @property
    def pipeline(self) -> BatchPipeline:
        """Its pipeline."""

    @property
    def order(self) -> OrderHash:
        """Hash of its order."""

    def weighted(self, weights: Sequence[list[int]]) -> Self:
        """The same phase with weights as states have them, after its own."""


_AnyPhase = TypeVar("_AnyPhase", bound=_Phase)


def weighted(
    pipeline: BatchPipeline,
    order: OrderHash,
    weights: Sequence[list[int]],
) -> tuple[BatchPipeline, OrderHash]:
    """The pipeline and the order of a loader with weights that were set in mid-run.

    Args:
        pipeline: Pipeline of the loader.
        order: Hash of its order, whose own weights apply before the first of `weights`.
        weights: The weights; not empty.
    """
    plan = pipeline.plan
    mixture = _mixture(plan)
    first = weights[0][0]
    earlier = [own for own in order.weights if own[0] < first]
    segments = [Segment(start, tuple(units)) for start, *units in weights]
    mixture = mixture.reweighted(segments)
    plan = _replanned(plan, mixture)
    dataset = pipeline.whole.dataset.reordered(mixture)
    whole = replace(pipeline.whole, dataset=dataset)
    return (
        replace(pipeline, plan=plan, whole=whole),
        order.weighted(dataset, [*earlier, *weights]),
    )


def _mixture(plan: Steps) -> Mixed:
    """The mixture that a plan cuts into steps.

    Raises:
        ArgumentError: If there is none, or it is not what the plan cuts.
    """
    order = plan.order
    if not isinstance(order, Mixed):
        raise ArgumentError(
            f"set_weights() needs a mixture, and this run reads {order.text()[-1]}; "
            "make mix() the last verb but for maps, and pass a number for batch_size"
        )
    return order


def _replanned(plan: Steps, mixture: Mixed) -> BatchPlan:
    """The same plan of other weights, without skipped steps that it does not have."""
    assert isinstance(plan, BatchPlan)
    skips = plan.skips
    made = replace(plan, order=mixture, skips=Skips())
    if made.num_steps is not None:
        skips = skips.before(made.num_steps)
    return made.skipping(skips)


def set_weights(
    targets: Sequence[Target],
    phases: Phases,
    step: int,
    weights: Any,
) -> tuple[Sequence[Target], Phases]:
    """The targets of a run with other weights from a step on.

    Args:
        targets: Targets of the phases.
        phases: Their steps.
        step: First step with these weights.
        weights: Weights that a user passes.

    Raises:
        ArgumentError: As of `DataIterator.set_weights`.
    """
    known = [target.phase for target in targets]
    changed = _changed(known, phases, step, weights)
    return _retargeted(targets, known, changed)


def of_state(
    targets: Sequence[Target],
    phases: Phases,
    start: Any,
) -> tuple[Sequence[Target], Phases]:
    """The targets and phases of a run with the weights that a state has, without others that were set.

    Args:
        targets: Targets of the run.
        phases: Their steps.
        start: Step or state; of a stream, also the states of several processes.

    Raises:
        StateError: If the weights of the state are not those of this mixture.
    """
    known = [target.phase for target in targets]
    origins = [target.origin for target in targets]
    restored = restored_phases(origins, start)
    if restored is origins:  # a step, which has no weights
        return targets, phases
    changed = [
        old if [*old.order.weights] == [*new.order.weights] else new
        for old, new in zip(known, restored, strict=True)
    ]
    if all(map(is_, known, changed)):
        return targets, phases
    return _retargeted(targets, known, changed)


def _retargeted(
    targets: Sequence[Target],
    known: Sequence[_Phase],
    changed: Sequence[_Phase],
) -> tuple[Sequence[Target], Phases]:
    """The targets of phases that have changed, beside those that have not, and the steps of all."""
    made = []
    for target, old, new in zip(targets, known, changed, strict=True):
        if old is new:
            made.append(target)
        else:
            made.append(target.of_phase(new))
    return made, _steps(changed)


def _changed(
    known: Sequence[_AnyPhase],
    run: Phases,
    step: int,
    weights: Any,
) -> list[_AnyPhase]:
    """The phases of a run with other weights from a step on."""
    number, local = run.locate(step)
    changed = [*known]
    plan = known[number].pipeline.plan
    mixture = _mixture(plan)
    epoch, position = plan.position_of_step(local)
    start = int(mixture.begin(epoch) + position)
    units = whole_units(weights, list(mixture.names), "weights", mixture.version)
    changed[number] = known[number].weighted([[start, *units]])
    return changed


def restored_phases(
    phases: Sequence[_AnyPhase],
    start: Any,
) -> Sequence[_AnyPhase]:
    """The phases of a loader with the weights that a state has; those given if it is a step.

    Args:
        phases: The phases.
        start: Step or state; also the states of several processes.

    Raises:
        StateError: If the weights of the state are not those of this mixture.
    """
    if isinstance(start, list | tuple) and start:
        start = start[0]  # of one process: all of them have the same weights
    if not isinstance(start, Mapping):
        return phases
    return _restored(phases, start)


def _restored(
    phases: Sequence[_AnyPhase], state: Mapping[str, Any]
) -> list[_AnyPhase]:
    """The phases of a loader with the weights that a state has."""
    states = state.get(KEY, [state])
    if not isinstance(states, list | tuple):
        return [*phases]  # it is refused where its step is read
    saved = [each.get(WEIGHTS, []) for each in states if isinstance(each, Mapping)]
    saved += [[]] * (len(phases) - len(saved))
    return [
        phase.weighted(_checked(phase, weights))
        for phase, weights in zip(phases, saved, strict=False)
    ]


def _checked(phase: _Phase, weights: Any) -> list[list[int]]:
    """The weights of a state as plain lists.

    Raises:
        StateError: If they are not weights of this mixture.
    """
    found = plain(weights)
    if found == []:
        return []
    order = phase.pipeline.plan.order
    before = -1
    for change in found if isinstance(found, list) else [None]:
        if (
            not isinstance(order, Mixed)
            or not isinstance(change, list)
            or len(change) != len(order.parts) + 1
            or not all(type(number) is int for number in change)
            or not before < change[0] <= LARGEST
            or min(change[1:]) < 0
            or not 0 < sum(change[1:]) <= MOST_SLOTS
        ):
            raise StateError(
                f"the state's {WEIGHTS!r} is {shown(weights)}, which are no weights "
                "of this dataset; build the dataset as it was then"
            )
        before = change[0]
    return found


def with_weights(
    run: Phases,
    phases: Sequence[_AnyPhase],
    weights: Any,
) -> Sequence[_AnyPhase]:
    """The phases of a loader with weights that are set in mid-run; see `Dataloader.with_weights`.

    Args:
        run: Steps of the phases.
        phases: The phases.
        weights: A state, or weights by step.

    Raises:
        ArgumentError, StateError: As of `Dataloader.with_weights`.
    """
    if not isinstance(weights, Mapping) or not weights:
        raise ArgumentError(
            f"weights={shown(weights)}: pass a state of get_state(), or weights by "
            "step: {1000: {name: weight}}"
        )
    if "version" in weights:
        changed = _restored(phases, weights)
        _steps(changed).start_of(weights)
        return changed
    changed = [*phases]
    for step in sorted(integer("step of weights", step) for step in weights):
        run.check(step)
        changed = _changed(changed, run, step, weights[step])
        run = _steps(changed)
    return changed


def _steps(runs: Sequence[_Phase]) -> Phases:
    return Phases([(run.pipeline.plan, run.order) for run in runs])
