"""What the real processes of `test_record_processes.py` do."""

import json
from pathlib import Path

import jax

from tests.records import begin, chains


def save(folder: str) -> None:
    """Begins a run of every chain, and writes their states."""
    files = Path(folder)
    states = {name: begin(chain) for name, chain in chains(folder, files / "index").items()}
    (files / f"{jax.process_index()}.json").write_text(json.dumps(states))
