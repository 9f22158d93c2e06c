"""Phase: what a loader reads in a row of steps, and where it goes. Most loaders have one, `chain` makes several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
from jax.sharding import Mesh

from loadax.core.arguments import MOST_POSITIONS
from loadax.core.formatting import count_text
from loadax.core.key_value import LoaderRuns
from loadax.dataset import Dataset
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.loader_arguments import LoaderArguments
from loadax.loader.options import mesh_of
from loadax.loader.order_hash import OrderHash
from loadax.loader.pipeline import BatchPipeline, make_pipeline
from loadax.loader.slots import OtherHosts
from loadax.loader.stretch import Target, join_hosts
from loadax.plan.skips import Skips
from loadax.plan.steps import Steps
from loadax.protocols import Integers
from loadax.sharding.mesh import PlannedMesh, current_mesh, resolve_mesh

if TYPE_CHECKING:
    from loadax.loader.receipts.content_digests import ContentDigests
    from loadax.loader.state_contents import StateContents


@final
@dataclass(frozen=True, eq=False)
class Phase:
    """Steps, rows and places of one phase of a run. Steps are counted from its start.

    Args:
        arguments: Arguments of its loader.
        pipeline: Pipeline of all of them.
        order: Hash of its order.
        mesh: Mesh that the user passed. None: the current one of each call.
        made_in: Mesh that was current when the loader was made.
        runs: Names of its runs among the hosts.
    """

    arguments: LoaderArguments
    pipeline: BatchPipeline
    order: OrderHash
    mesh: Mesh | PlannedMesh | None
    made_in: Mesh | PlannedMesh | None
    runs: LoaderRuns

    @property
    def plan(self) -> Steps:
        """Its steps."""
        return self.pipeline.plan

    @property
    def dataset(self) -> Dataset:
        """Its dataset."""
        return self.pipeline.whole.dataset

    def skipping(self, skips: Skips) -> "Phase":
        """The same phase, of which these steps are skipped."""
        plan = self.plan.skipping(skips)
        return replace(
            self, pipeline=replace(self.pipeline, plan=plan), runs=LoaderRuns()
        )

    def weighted(self, weights: Sequence[list[int]]) -> "Phase":
        """The same phase with weights that were set in mid-run, as states have them, after its own."""
        if not weights:
            return self
        from loadax.loader.weights import weighted

        pipeline, order = weighted(self.pipeline, self.order, weights)
        return replace(self, pipeline=pipeline, order=order)

    def mesh_here(self) -> Mesh | PlannedMesh | None:
        """The mesh for the calling thread, which must be the caller's; None: there is none yet."""
        if self.mesh is not None:
            return self.mesh
        return current_mesh() or self.made_in

    def shard(self, step: int = 0) -> HostShard:
        """This process's part of a step, for the calling thread."""
        return self.pipeline.shard(resolve_mesh(self.mesh_here()), step)

    def positions(self, step: int) -> Integers:
        """Positions of this process's rows in a step, for the calling thread."""
        return self.positions_on(self.mesh_here(), step)

    def positions_on(self, mesh: Mesh | PlannedMesh | None, step: int) -> Integers:
        part = self.pipeline.options.shard
        if part is None or mesh is not None:
            return self.pipeline.shard(resolve_mesh(mesh), step).positions
        size = self.plan.segment_of(step)[0].batch_size // part.count
        return np.arange(part.index * size, (part.index + 1) * size, dtype=np.int64)

    def placing_mesh(self) -> Mesh:
        """The current mesh of the caller's thread, on which all batches of the phase can be placed."""
        shards = [self.shard(step) for step in self.pipeline.plan.first_steps]
        mesh = shards[0].shardings[0].mesh
        assert isinstance(mesh, Mesh)
        return mesh

    def _prepare_states(self) -> None:
        """Reads what states need of the data, so that none waits for it."""
        chosen = self.arguments.contents
        if chosen is None or chosen == "identity":
            return
        if self.order.contents is not None:
            self.order.contents.prepare()

    def target(self) -> Target:
        """The devices, as the target of its batches."""
        self._prepare_states()
        return _target(self.placing_mesh(), self, self)

    def host_target(self) -> Target:
        """The memory of this host, as the target of its batches."""
        self._prepare_states()
        # Other threads, and later steps, have the rows of the mesh that is current now.
        mesh = self.mesh_here()
        if self.pipeline.options.shard is None:
            mesh = resolve_mesh(mesh)
        return _host_target(mesh, self, self)

    def text(self) -> str:
        """The loader as text."""
        plan = self.plan
        if plan.num_steps is None:
            steps = "endless"
        else:
            steps = count_text(plan.num_steps, "step")
        if dropped := self._rows_dropped():
            steps += f", {count_text(dropped, 'row')} of each epoch dropped"
        return (
            f"Dataloader({self.dataset!r}, "
            f"batch_size={self.arguments.steps.batch_size!r}, {steps})"
        )

    def _rows_dropped(self) -> int:
        """Rows of an epoch that are too few for a batch; 0 where that depends on the epoch."""
        plan = self.plan
        endless = plan.order.size >= MOST_POSITIONS or self.dataset.is_stream
        if (
            endless
            or not isinstance(plan.batch_size, int)
            or plan.remainder != "drop"
        ):
            return 0
        return int(plan.order.size % plan.batch_size)


def _contents_of(
    dataset: Dataset, chosen: "str | ContentDigests | None"
) -> "StateContents | None":
    from loadax.loader.receipts.contents import contents_of

    return contents_of(dataset, chosen)


def _target(mesh: Mesh, phase: Phase, origin: Phase) -> Target:
    """`Phase.target` on a mesh. `origin`: the phase before weights were set."""
    pipeline = phase.pipeline
    shard = partial(pipeline.shard, mesh)
    hosts = partial(join_hosts, phase.runs, phase.order)
    make = partial(_target, mesh)
    given = phase.mesh is not None
    return Target(pipeline, shard, mesh, given, hosts, phase, origin, make)


def _host_target(
    mesh: Mesh | PlannedMesh | None, phase: Phase, origin: Phase
) -> Target:
    """`Phase.host_target` on a mesh. `origin`: the phase before weights were set."""
    pipeline = phase.pipeline.on_host()
    for step in phase.plan.first_steps:
        # raises before the first batch, not in mid-run
        phase.positions_on(mesh, step)

    def shard(step: int) -> HostShard:
        return pipeline.host_shard(
            phase.positions_on(mesh, step), step, pipeline.form(step).host_batch
        )

    def hosts(
        pipeline: BatchPipeline, _: Mesh | None, *run: Any
    ) -> OtherHosts | None:
        return join_hosts(phase.runs, phase.order, pipeline, mesh, *run)

    make = partial(_host_target, mesh)
    return Target(pipeline, shard, None, True, hosts, phase, origin, make)


def make_phase(arguments: LoaderArguments) -> Phase:
    """The phase of a loader's arguments.

    Raises:
        ArgumentError, PartitionError, LeafTypeError: As of `Dataloader`.
    """
    pipeline = make_pipeline(arguments)
    if arguments.contents != "identity":
        from loadax.loader.receipts.content_digests import check_contents

        check_contents(arguments.contents)
    dataset = pipeline.whole.dataset
    make_contents = partial(_contents_of, dataset, arguments.contents)
    order = OrderHash(dataset, pipeline.options.key_seed, make_contents=make_contents)
    mesh = arguments.place.mesh
    if mesh is None:
        # a NamedSharding includes its mesh
        mesh = mesh_of(arguments.place.partition)
    phase = Phase(arguments, pipeline, order, mesh, current_mesh(), LoaderRuns())
    if phase.mesh is not None or phase.made_in is not None:
        for segment in pipeline.plan.segments:
            phase.shard(segment.first)
    return phase
