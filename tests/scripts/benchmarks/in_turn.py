"""Contestants in one process, one behind the other.

`python in_turn.py '{"WORKLOAD": ["NAME", ...], ...}'` prints what each answers as JSON.

run.py gives each of them a process of its own, which takes longer to start than all of this.
"""

import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
TIMED = "rows"
"""The workload whose first batches are timed: it is the same code for all, and starts each loader twice more."""


def main(chosen: dict[str, list[str]]) -> None:
    """Asks each contestant of each workload what run.py asks it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    print(json.dumps({workload: answers(workload, names) for workload, names in chosen.items()}))  # noqa: T201


def answers(name: str, chosen: list[str]) -> dict[str, Any]:
    """What the contestants of one workload answer."""
    import jax
    import numpy as np
    from contestant import Measured
    from contestants import CONTESTANTS
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from workloads import find

    gc.freeze()  # a first batch is measured after a collection, which need not look at all of JAX
    workload = find(name, quick=True)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        workload.write(folder)
        for each in chosen:
            form = CONTESTANTS[name][each]
            measured = Measured(workload, folder, form.prepare(workload, folder, sharding))
            found[each] = {
                "ready": measured.ready(),
                "check": form.feeds and measured.check(batches=8),
                "first": name == TIMED and measured.first(times=1),
                "round": measured.round(seconds=0.05, lead=0.02),
            }
            measured.end()
    return found


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
