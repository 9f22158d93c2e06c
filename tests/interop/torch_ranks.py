"""A rank of PyTorch, which no JAX device is there for: batches, digests, resumes, and a model that is trained.

python tests/interop/torch_ranks.py FOLDER RANK WORLD_SIZE

Rank 0 prints one line of JSON. `test_torch.py` compares it with what JAX makes of the same loaders on eight devices.
"""

import hashlib
import json
import os
import sys
from typing import Any

import ml_dtypes
import numpy as np

import loadax

BATCH, STEPS, SPLIT = 16, 12, 5
WORLDS = (1, 2, 4)
HIDDEN, TRAINED, RATE = 16, 200, 0.05


def loader(**options: Any) -> loadax.Dataloader:
    """Rows of several dtypes, shuffled, with a random map, padding and a key; two epochs, and less."""
    random = np.random.default_rng(0)
    rows = {
        "x": random.normal(size=(90, 3)).astype(np.float32),
        "half": random.normal(size=(90, 2)).astype(ml_dtypes.bfloat16),
        "label": random.integers(0, 2**31, 90),
        "byte": random.integers(0, 256, (90, 2, 2)).astype(np.uint8),
        "flag": random.random(90) < 0.5,
    }
    data = loadax.from_arrays(rows).shuffle(seed=1).map(_noisy, rng=True)
    return loadax.Dataloader(data, BATCH, num_epochs=2, remainder="pad", key_seed=2, **options)


def _noisy(row: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    return row | {"x": row["x"] + random.normal(size=3).astype(np.float32)}


def regression(**options: Any) -> loadax.Dataloader:
    """Rows of a function that a small model learns."""
    x = np.random.default_rng(3).normal(size=(500, 8)).astype(np.float32)
    data = loadax.from_arrays({"x": x, "y": np.sin(x.sum(1, keepdims=True))}).shuffle(seed=4)
    return loadax.Dataloader(data, 32, num_epochs=None, **options)


def weights() -> list[np.ndarray]:
    random = np.random.default_rng(5)
    shapes = (8, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)
    return [random.normal(size=shape, scale=0.3).astype(np.float32) for shape in shapes]


def digest(leaves: dict[str, np.ndarray]) -> str:
    """SHA-256 of the names, dtypes, shapes and bytes of a batch."""
    found = hashlib.sha256()
    for name, leaf in sorted(leaves.items()):
        found.update(f"{name} {leaf.dtype} {leaf.shape} ".encode() + leaf.tobytes())
    return found.hexdigest()


class Rank:
    """One of the processes.

    Args:
        folder: Folder in which they find each other.
        rank: Its number.
        world_size: Their number.
    """

    def __init__(self, folder: str, rank: int, world_size: int):
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        self.rank, self.world_size = rank, world_size
        self.torch, self.distributed = torch, distributed
        meeting = f"file://{folder}/meeting"
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
        self.groups = {size: distributed.new_group(range(size)) for size in WORLDS}

    def whole(self, batch: dict[str, Any], size: int) -> str:
        """Digest of the batch of all of `size` ranks together."""
        leaves = {}
        for name, part in batch.items():
            own = part.contiguous().view(self.torch.uint8)
            parts = [self.torch.empty_like(own) for _ in range(size)]
            self.distributed.all_gather(parts, own, group=self.groups[size])
            numbers = self.torch.cat(parts).numpy().reshape(-1)
            dtype = np.dtype(str(part.dtype).removeprefix("torch."))
            leaves[name] = numbers.view(dtype).reshape(-1, *part.shape[1:])
        return digest(leaves)

    def run(self, size: int, start: Any = 0, stop: int = STEPS) -> tuple[list[str], Any]:
        """Digests of the batches of `size` ranks, and the state after them; nothing on further ranks."""
        from loadax.interop.torch import batches

        found: list[str] = []
        if self.rank >= size:
            return found, None
        with batches(loader(), self.rank, size, start=start) as source:
            while source.step < stop:
                found.append(self.whole(next(source), size))
            return found, source.state_dict()

    def resumed(self, size: int, other: int) -> list[str]:
        """Digests of the batches of `other` ranks, from the state that rank 0 of `size` saved."""
        states = [self.run(size, stop=SPLIT)[1]]
        self.distributed.broadcast_object_list(states)
        return self.run(other, states[0])[0]

    def trained(self) -> list[float]:
        """Losses of a model that all ranks train, whose numbers the process group knows."""
        from loadax.interop.torch import batches

        nn = self.torch.nn
        model = nn.Sequential(nn.Linear(8, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
        first, bias, second, last = map(self.torch.from_numpy, weights())
        model.load_state_dict({"0.weight": first.T, "0.bias": bias, "2.weight": second.T, "2.bias": last})
        parallel = nn.parallel.DistributedDataParallel(model)
        optimizer = self.torch.optim.SGD(parallel.parameters(), RATE)
        losses = []
        with batches(regression()) as source:
            for _ in range(TRAINED):
                batch = next(source)
                loss = nn.functional.mse_loss(parallel(batch["x"]), batch["y"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                mean = loss.detach() / self.world_size
                self.distributed.all_reduce(mean)
                losses.append(float(mean))
        return losses


def main(folder: str, number: int, world_size: int) -> None:
    os.environ["JAX_PLATFORMS"] = "none"  # looking for a device would fail
    rank = Rank(folder, number, world_size)
    from loadax.interop.torch import BatchSampler

    report: dict[str, Any] = {"digest": loader().digest()}
    report["batches"] = {size: rank.run(size)[0] for size in WORLDS}
    report["resumed"] = [rank.resumed(size, other) for size, other in ((4, 2), (2, 4), (4, 1), (1, 2))]
    report["losses"] = rank.trained()
    sampler = BatchSampler(regression(), start=3)
    report["rank"] = [sampler.rank, sampler.world_size, len(next(iter(sampler)))]
    if number == 0:
        sys.stdout.write(json.dumps(report) + "\n")
    rank.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
