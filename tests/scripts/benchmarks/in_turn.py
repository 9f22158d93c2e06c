"""Contestants of one workload in one process, one behind the other.

`python in_turn.py WORKLOAD NAME ...` prints what each answers as JSON.

run.py gives each of them a process of its own, which takes longer to start than all of this.
"""

import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SLOW_TO_START = ("grain-2", "grain-batches-2")
"""Iterators of these start two interpreters that import Grain, so they have one iterator each, which is checked."""


def main(name: str, *chosen: str) -> None:
    """Asks each contestant what run.py asks it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import jax
    import numpy as np
    from contestant import Measured
    from contestants import CONTESTANTS
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from workloads import find

    gc.freeze()  # a first batch is measured after a collection, which need not look at all of JAX
    workload = find(name, quick=True)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        workload.write(folder)
        for each in chosen:
            form = CONTESTANTS[name][each]
            measured = Measured(workload, folder, form.prepare(workload, folder, sharding))
            answers[each] = {"ready": measured.ready(), "check": form.feeds and measured.check(batches=8)}
            if each not in SLOW_TO_START:
                answers[each]["first"] = form.feeds and measured.first(times=1)
                answers[each]["round"] = measured.round(seconds=0.05, lead=0.02)
            measured.end()
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
