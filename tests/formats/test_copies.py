"""What other threads, processes and runs read of a dataset of files is what this one reads."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from tests.formats.samples import SAMPLES, Sample, every
from tests.servers.child import run_python

NUMBERS = list(range(48))


def leaf(sample: Sample, data: loadax.Dataset) -> loadax.Dataset:
    """The numbers alone, which can be placed."""
    return data.map(lambda example: np.int32(np.asarray(sample.number(example)).astype(np.int64).flat[0]))


@every()
def test_threads_read_what_one_reads(sample: Sample, tmp_path: Path) -> None:
    data = leaf(sample, sample.open(sample.file(tmp_path / f"a{sample.ending}", NUMBERS)))
    asked = [np.random.default_rng(seed).integers(0, len(NUMBERS), 40) for seed in range(32)]
    with ThreadPoolExecutor(8) as threads:
        for rows, read in zip(asked, threads.map(data.read, asked), strict=True):
            assert read.tolist() == rows.tolist()


@pytest.fixture
def datasets(tmp_path: Path) -> dict[str, loadax.Dataset]:
    """A dataset of each format."""
    return {
        name: sample.open(sample.file(tmp_path / name / f"a{sample.ending}", NUMBERS))
        for name, sample in SAMPLES.items()
    }


@pytest.mark.processes
def test_fresh_process_reads_pickled_datasets_without_jax(datasets: dict[str, loadax.Dataset], tmp_path: Path) -> None:
    sources = {name: pickle.dumps(data.source) for name, data in datasets.items()}
    assert {name: len(content) for name, content in sources.items() if len(content) > 4000} == {}
    (tmp_path / "sources").write_bytes(pickle.dumps(sources))
    code = f"""
import json, pickle, sys
import numpy as np
with open({str(tmp_path / "sources")!r}, "rb") as file:
    sources = pickle.load(file)
print(json.dumps({{name: repr(pickle.loads(source).read(np.arange(48))) for name, source in sources.items()}}))
assert "jax" not in sys.modules
"""
    read = json.loads(run_python(code))
    for name, data in datasets.items():
        assert read[name] == repr(data.source.read(np.arange(48))), name


@pytest.mark.processes
def test_worker_processes_and_another_run_read_the_same(datasets: dict[str, loadax.Dataset]) -> None:
    """All formats side by side: worker processes, and a run that resumes in mid-epoch on datasets opened again."""

    def loader(**options: Any) -> loadax.Dataloader:
        side_by_side = loadax.zip({name: leaf(SAMPLES[name], data) for name, data in datasets.items()})
        return loadax.Dataloader(side_by_side.shuffle(seed=3), 8, num_epochs=2, **options)

    straight = [{name: np.asarray(values).tolist() for name, values in batch.items()} for batch in loader()]
    assert all(len({*map(tuple, batch.values())}) == 1 for batch in straight)  # no format has other rows
    assert sorted(number for batch in straight[:6] for number in batch["csv"]) == NUMBERS
    with iter(loader(num_workers=2, worker_type="process")) as batches:
        begun = [np.asarray(next(batches)["npy"]).tolist() for _ in range(4)]
        state = batches.get_state()
    assert begun == [batch["npy"] for batch in straight[:4]]
    resumed = [np.asarray(batch["npy"]).tolist() for batch in loader().iterate(start=state)]
    assert resumed == [batch["npy"] for batch in straight[4:]]


@pytest.mark.processes
def test_more_files_than_a_process_may_open_are_read(tmp_path: Path) -> None:
    files, limit = 160, 128
    names = [name for name, sample in SAMPLES.items() if sample.together]
    for name in names:
        for index in range(files):
            SAMPLES[name].file(tmp_path / name / f"{index:03}{SAMPLES[name].ending}", [index % 256])
    code = f"""
import json, resource
from pathlib import Path
import numpy as np
from tests.formats.samples import SAMPLES
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
rows = np.random.default_rng(0).permutation({files}).tolist()
read = {{}}
for name in {names}:
    data = SAMPLES[name].open(Path({str(tmp_path)!r}) / name)
    for _ in range(2):
        read[name] = [int(np.asarray(SAMPLES[name].number(data[row])).flat[0]) for row in rows]
print(json.dumps([read, rows]))
"""
    read, rows = json.loads(run_python(code))
    for name, values in read.items():
        assert values == [row % 256 for row in rows], name
