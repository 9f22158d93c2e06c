"""Every source of records and every verb of them, in a run of several processes."""

import json
from pathlib import Path

from tests.processes.launch import run_processes
from tests.records import chains, finish, write


def test_every_door_and_verb_of_two_processes_goes_on_in_one(tmp_path: Path) -> None:
    write(tmp_path)
    here = chains(str(tmp_path), tmp_path / "index")  # builds the indices, which a run of several processes needs
    run_processes("tests.records:save", 2, 4, {"folder": str(tmp_path)})
    states, others = (json.loads((tmp_path / f"{process}.json").read_text()) for process in range(2))
    assert states == others
    assert states.keys() == here.keys()
    for name, chain in here.items():
        finish(chain, states[name])
