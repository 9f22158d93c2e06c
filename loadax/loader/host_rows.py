"""HostRows: what a batch has on the host beside the placed arrays."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from loadax.errors import ArgumentError
from loadax.protocols import Integers, Tree


@final
@dataclass(frozen=True, eq=False)
class HostRows(Mapping[str, Tree]):
    """The host leaves of one step, by name, for the rows that this process reads.

    Args:
        step: Step of the batch.
        positions: int64[n]: positions of these rows in the global batch, ascending. With `microbatches=k`, position p
            is entry `(p % k, p // k)` of the placed leaves.
        leaves: Leaves by the names of `host_leaves=`: NumPy arrays, rows first. Padding is zeros,
            empty strings or bytes, or None in place of other objects.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader, from_arrays
        >>> data = from_arrays({"x": np.arange(8), "name": np.array(list("abcdefgh"))})
        >>> rows = Dataloader(data, batch_size=8, host_leaves="name").host(0)
        >>> rows["name"][:2].tolist(), rows.positions[:2].tolist()
        (['a', 'b'], [0, 1])
    """

    step: int
    positions: Integers
    leaves: dict[str, Tree]

    def __getitem__(self, name: str) -> Tree:
        return self.leaves[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.leaves)

    def __len__(self) -> int:
        return len(self.leaves)


def host_leaves_of(leaves: Any) -> dict[str, Tree]:
    """The leaves that a batch has on the host.

    Raises:
        ArgumentError: If it has none.
    """
    if not isinstance(leaves, dict) or not leaves:
        raise ArgumentError(
            "this loader places all leaves; name those to keep: Dataloader(…, "
            "host_leaves=['name'])"
        )
    return dict(leaves)
