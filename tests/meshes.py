"""The mesh zoo: who owns which device, on all the grids of eight devices that have broken a loader before."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from loadax.sharding import PlannedMesh, plan_mesh


@dataclass(frozen=True)
class MeshCase:
    """A mesh as data: its axes, and the owners of its devices written row by row, as `0011/1100`."""

    name: str
    axes: tuple[str, ...]
    picture: str

    @property
    def owners(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        rows = np.array([[int(owner) for owner in row] for row in self.picture.split("/")])
        return rows if len(self.axes) > 1 else rows[0]

    @property
    def processes(self) -> int:
        return int(self.owners.max()) + 1

    def planned(self, process: int = 0) -> PlannedMesh:
        """As a mesh that is not there."""
        return plan_mesh(dict(zip(self.axes, self.owners.shape, strict=True)), owners=self.owners, process=process)

    def real(self, axis_type: AxisType = AxisType.Auto) -> Mesh:
        """As a mesh of real processes: each place gets the next device of its owner."""
        devices = {process: iter(group) for process, group in _by_process().items()}
        grid = np.empty(self.owners.shape, object)
        for place, owner in np.ndenumerate(self.owners):
            grid[place] = next(devices[int(owner)])
        return Mesh(grid, self.axes, axis_types=(axis_type,) * len(self.axes))


def _by_process() -> dict[int, list[jax.Device]]:
    groups: dict[int, list[jax.Device]] = {}
    for device in jax.devices():
        groups.setdefault(device.process_index, []).append(device)
    return groups


ZOO = (
    MeshCase("contiguous", ("data",), "00001111"),
    MeshCase("interleaved", ("data",), "01010101"),
    MeshCase("holed", ("data",), "00011110"),
    MeshCase("checkerboard", ("x", "y"), "0011/1100"),
    MeshCase("host by device", ("host", "device"), "0000/1111"),
    MeshCase("model spans two hosts", ("data", "model"), "0011/0011"),
    MeshCase("contiguous, four hosts", ("data",), "00112233"),
    MeshCase("interleaved, four hosts", ("data",), "01230123"),
    MeshCase("uneven rows", ("x", "y"), "00/12/21/33"),
    MeshCase("non-uniform", ("x", "y"), "0123/2103"),
    MeshCase("ring", ("x", "y"), "01/12/23/30"),
    MeshCase("host by device, four hosts", ("host", "device"), "00/11/22/33"),
    MeshCase("model spans four hosts", ("data", "model"), "0123/0123"),
)


def zoo(processes: int) -> list[MeshCase]:
    """The cases for this many processes."""
    return [case for case in ZOO if case.processes == processes]
