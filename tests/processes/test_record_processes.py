"""Every source of records and every verb of them, in a run of several processes."""

import json
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

import loadax
from tests.processes.launch import run_processes
from tests.records import chains, finish, write
from tests.servers.faults import FaultProxy
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


def test_one_process_of_a_run_asks_what_opening_needs(
    tmp_path: Path, range_server: RangeServer, http_proxy: FaultProxy
) -> None:
    files = 6
    for number in range(files):
        parquet.write_table(pa.table({"x": range(4 * number, 4 * number + 4)}), tmp_path / f"{number}.parquet")
    urls = [f"{http_proxy.url}/{number}.parquet" for number in range(files)]
    loadax.from_parquet(urls)
    alone = len(http_proxy.log)
    assert alone >= 2 * files
    http_proxy.clear()
    run_processes("tests.processes.record_bodies:open_what_others_open", 2, 1, {"urls": urls, "folder": str(tmp_path)})
    # twice by one process, and of a file by each, which also reads a row of it
    assert len(http_proxy.log) <= 2 * alone + 2 * 4
    assert (tmp_path / "index" / "opening.json").exists()


def test_processes_of_a_run_cache_shares_in_a_bucket(tmp_path: Path, bucket: str) -> None:
    arguments = {"url": f"s3://{bucket}/squares", "folder": str(tmp_path)}
    run_processes("tests.processes.record_bodies:cache_in_a_bucket", 2, 1, arguments)
    counts = [len((tmp_path / f"mapped-{process}").read_text().split()) for process in range(2)]
    sample = 35
    assert max(counts) <= 50 + sample
