"""States, indices, plans and caches of earlier versions open, and give the rows that they gave then."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from loadax.errors import StateError
from tests.kept.chains import CHAINS, filtered, numbers, packed, packed_by_leaf
from tests.kept.write import digest, loader_of

VERSIONS = sorted(path.parent for path in Path(__file__).parent.glob("*/runs.json"))
every_version = pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)


def test_there_is_a_version() -> None:
    assert VERSIONS


@every_version
@pytest.mark.parametrize("name", CHAINS)
def test_state_and_rows_of_earlier_version(version: Path, name: str) -> None:
    loader = loader_of(CHAINS[name]())
    for kept in json.loads((version / "runs.json").read_text())[name]:
        batches = loader.iterate(kept["state"])
        step = batches.step
        assert step == kept["state"]["step"]
        assert loader.rows(step).tolist() == kept["rows"]
        assert digest(loader.host_batch(step)) == kept["batch"]
        assert batches.get_state() == kept["state"]
        batches.close()


INDICES = {
    "filter": filtered,
    "pack": packed,
    "pack best_fit": lambda folder: packed(folder, method="best_fit", long="cut"),
    "pack_by_leaf": packed_by_leaf,
}


@every_version
@pytest.mark.parametrize("name", INDICES)
def test_index_of_earlier_version_is_read(
    version: Path, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "index"
    shutil.copytree(version / name.split(" ", maxsplit=1)[0], folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with caplog.at_level(logging.INFO, "loadax"):
        from_index = INDICES[name](folder)
    assert [record.message for record in caplog.records if "can't be used" in record.message] == []
    assert any(record.message.endswith(": read") for record in caplog.records)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before  # nothing was made again
    anew = INDICES[name](tmp_path / "new")
    positions = np.arange(len(anew))
    assert digest(from_index.read(positions)) == digest(anew.read(positions))


@every_version
def test_cache_of_earlier_version_is_read(version: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    shutil.copytree(version / "cache", folder)
    chunks = {path: path.stat().st_mtime_ns for path in folder.rglob("c/*")}
    assert digest(numbers()[:10].cache(folder, chunk_rows=4).read(range(10))) == digest(numbers()[:10].read(range(10)))
    assert chunks
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("c/*")} == chunks


def test_digest_is_that_of_earlier_versions() -> None:
    assert loader_of(CHAINS["shuffle"]()).digest() == "c11696c2c0a265e56e2486b666d83b25"


@every_version
def test_state_of_a_slice_of_a_shuffle_is_refused_with_the_call_that_goes_on(version: Path) -> None:
    loader = loader_of(numbers().shuffle(3)[:50])  # whose rows are fixed now
    for kept in json.loads((version / "runs.json").read_text())["shuffle, slice"]:
        with pytest.raises(
            StateError, match=r"to go on as before, pass \.subset_per_epoch\(range\(0, 50\)\) in its place"
        ):
            loader.iterate(kept["state"])
