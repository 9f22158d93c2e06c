"""Kills a run that leases prompts 50 times, at random: `python -m tests.chaos.leases`."""

import argparse
import tempfile
from pathlib import Path

from tests.processes.lease_bodies import trained

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prompts = trained(Path(folder), options.prompts, options.kills, options.seed)
    assert sorted(prompts) == list(range(options.prompts)), "a prompt was lost or repeated"
    print(f"{options.prompts:,} prompts, {options.kills} kills: each acknowledged once")
