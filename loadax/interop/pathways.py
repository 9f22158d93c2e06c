"""loadax on Pathways, and other runs of one controller: each host makes its part of a batch beside its own devices."""

from collections import deque
from collections.abc import Iterator
from typing import Any, final

import jax
import numpy as np
from jax.experimental import colocated_python
from jax.sharding import NamedSharding, PartitionSpec

from loadax.core.formatting import count_text, type_text
from loadax.errors import ArgumentError
from loadax.loader.dataloader import Dataloader, restored
from loadax.loader.loader_arguments import LoaderArguments
from loadax.loader.phases import Phases
from loadax.protocols import Tree


def batches(loader: Dataloader, start: Any = 0) -> "ColocatedIterator":
    """Iterates over a loader whose rows are read by the hosts of the devices, not by this controller.

    A controller of JAX's Pathways has all devices, so that `iter(loader)` would read every row here. Instead, each host
    gets the arguments of the loader by pickle, once, makes its own loader for the CPU devices beside its accelerators,
    reads ahead there, and hands its parts of a batch to the accelerators.

    Args:
        loader: Loader with `mesh=`, or with a NamedSharding in `partition=`, with one shape of batches.
        start: Step, or a state of `get_state()` from this or any other run.

    Raises:
        ArgumentError: If the loader has `host_leaves=`, `device_map=`, `keep_on_device=`, `remote=`, a stream, or
            several shapes of batches, or is no `Dataloader`.
        StateError: If the state belongs to other data.

    Examples:
        ```python
        import jax
        import numpy as np
        import loadax
        from loadax.interop import pathways

        mesh = jax.make_mesh((jax.device_count(),), ("data",))
        data = loadax.from_arrays({"x": np.arange(64.0)}).shuffle(seed=0)
        loader = loadax.Dataloader(data, batch_size=16, mesh=mesh)
        for batch in pathways.batches(loader):
            print(batch["x"].sharding)
        ```
    """
    return ColocatedIterator(loader, start)


@final
class ColocatedIterator(Iterator[Tree]):
    """Placed batches, made by the hosts of the devices. Made by `batches`.

    Args:
        loader: As for `batches`.
        start: As for `batches`.
    """

    def __init__(self, loader: Dataloader, start: Any):
        if not isinstance(loader, Dataloader):
            raise ArgumentError(
                f"loader is {type_text(loader)}; pass a Dataloader", argument="loader"
            )
        phase = loader.phases[0]
        arguments = phase.arguments
        place = arguments.place
        refused = {
            "host_leaves": place.host_leaves,
            "device_map": place.device_map,
            "keep_on_device": place.keep_on_device,
            "remote": arguments.workers.remote,
        }
        unlike = [f"{name}=" for name, value in refused.items() if value]
        unlike += ["the lanes of a stream"] if loader.dataset.is_stream else []
        unlike += ["several phases"] if len(loader.phases) > 1 else []
        unlike += (
            [f"{count_text(len(loader.specs), 'shape')} of batches"]
            if len(loader.specs) > 1
            else []
        )
        if unlike:
            raise ArgumentError(
                f"loader has {unlike[0]}, and each host makes jax.Arrays of one "
                "shape by its own cores; leave it out",
                argument="loader",
            )
        self._steps = Phases([(phase.plan, phase.order)])
        self._prefetch = arguments.limits.prefetch
        self.step = self._steps.start_of(start)
        self._shardings = jax.tree.map(lambda leaf: leaf.sharding, loader.spec)
        mesh = colocated_python.colocated_cpu_devices(phase.placing_mesh())
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        # no devices
        partition = jax.tree.map(
            lambda given: getattr(given, "spec", given), place.partition
        )
        remote_class: Any = colocated_python.colocated_python_class(_Host)
        there = arguments._replace(
            place=place._replace(mesh=None, partition=partition)
        )
        self._host = remote_class(there, phase.plan.skips, phase.order.weights)
        self._ahead: deque[Tree] = deque()

    def __next__(self) -> Tree:
        while (
            len(self._ahead) <= self._prefetch
            and self.step + len(self._ahead) != self._steps.num_steps
        ):
            step = jax.device_put(
                np.int32(self.step + len(self._ahead)), self._everywhere
            )
            self._ahead.append(
                jax.device_put(self._host.batch(step), self._shardings)
            )
        if not self._ahead:
            raise StopIteration
        self.step += 1
        return self._ahead.popleft()

    def get_state(self) -> dict[str, Any]:
        """The state after the batches handed out, as that of a `DataIterator`: either continues the other's run."""
        return self._steps.state(self.step)


class _Host:
    """The program of each host. Not final: JAX makes a class of it."""

    def __init__(self, arguments: LoaderArguments, *changes: Any):
        self._given = arguments, changes
        self._batches: Any = None

    def batch(self, step: Any) -> Tree:
        """This host's part of the batch of a step, a `jax.Array` on all devices; the next one is read ahead."""
        number = int(step.addressable_data(0))
        if self._batches is None or self._batches.step != number:
            arguments, (skips, weights) = self._given
            place = arguments.place._replace(mesh=step.sharding.mesh)
            arguments = arguments._replace(place=place)
            loader = restored((arguments, skips, weights))
            self._batches = loader.iterate(number)
        return next(self._batches)
