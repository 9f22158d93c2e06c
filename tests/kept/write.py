"""Writes what this version of loadax keeps for later runs: `python -m tests.kept.write FOLDER`.

Run it once for a version that changes a format, into a new folder of `tests/kept`, and never again for that folder.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from loadax import Dataloader
from loadax.sharding import data_parallel
from tests.kept.chains import CHAINS, filtered, numbers, packed, packed_by_leaf

STEPS = (0, 1, 5, 11)
BATCH_SIZE = 4


def loader_of(data: Any) -> Dataloader:
    return Dataloader(data, BATCH_SIZE, mesh=data_parallel(jax.devices()[:1]), num_epochs=2, num_workers=0)


def digest(batch: Any) -> str:
    """Hash of the leaves of a batch."""
    content = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        array = np.asarray(leaf)
        content.update(repr((jax.tree_util.keystr(path), array.dtype.str, array.shape)).encode() + array.tobytes())
    return content.hexdigest()[:16]


def run_of(data: Any) -> list[dict[str, Any]]:
    """States, rows and digests of some steps."""
    loader = loader_of(data)
    return [
        {
            "state": loader.iterate(step).get_state(),
            "rows": loader.rows(step).tolist(),
            "batch": digest(loader.host_batch(step)),
        }
        for step in STEPS
        if step < len(loader)
    ]


def main(folder: Path) -> None:
    """Writes all of it."""
    folder.mkdir(parents=True)
    runs = {name: run_of(chain()) for name, chain in CHAINS.items()}
    (folder / "runs.json").write_text(json.dumps(runs, indent=None).replace('"], "', '"],\n"').replace("}], ", "}],\n"))
    filtered(folder / "filter")
    packed(folder / "pack", method="best_fit", long="cut")
    packed(folder / "pack")
    packed_by_leaf(folder / "pack_by_leaf")
    numbers()[:10].cache(folder / "cache", chunk_rows=4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
