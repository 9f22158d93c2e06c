"""Every source of records and every verb of them, in a run of several processes."""

import json
from pathlib import Path

from tests.processes.launch import run_processes
from tests.records import chains, finish, write
from tests.servers.ranges import RangeServer
from tests.sources.shards.corpora import numbered, write_tar

pytest_plugins = ["tests.servers.fixtures"]


def test_every_door_and_verb_of_two_processes_goes_on_in_one(tmp_path: Path) -> None:
    write(tmp_path)
    here = chains(str(tmp_path), tmp_path / "index")  # builds the indices, which a run of several processes needs
    run_processes("tests.records:save", 2, 4, {"folder": str(tmp_path)})
    states, others = (json.loads((tmp_path / f"{process}.json").read_text()) for process in range(2))
    assert states == others
    assert states.keys() == here.keys()
    for name, chain in here.items():
        finish(chain, states[name])


def test_processes_of_a_run_index_remote_files_together(tmp_path: Path, range_server: RangeServer) -> None:
    urls = [f"{range_server.url}/{number}.tar" for number in range(8)]
    for number in range(8):
        write_tar(tmp_path / f"{number}.tar", numbered(3, 3 * number))
    run_processes("tests.processes.record_bodies:index_remote_files", 2, 1, {"urls": urls, "folder": str(tmp_path)})
    scanned = [(tmp_path / f"scans-{process}").read_text().split() for process in range(2)]
    assert sorted(scanned[0] + scanned[1]) == sorted(urls)
    assert all(scanned)


def test_processes_of_a_run_cache_shares_in_a_bucket(tmp_path: Path, bucket: str) -> None:
    arguments = {"url": f"s3://{bucket}/squares", "folder": str(tmp_path)}
    run_processes("tests.processes.record_bodies:cache_in_a_bucket", 2, 1, arguments)
    counts = [len((tmp_path / f"mapped-{process}").read_text().split()) for process in range(2)]
    sample = 35
    assert max(counts) <= 50 + sample
