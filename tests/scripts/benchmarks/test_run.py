"""The benchmarks run, their contestants serve the same rows, and a run is not made twice.

What is measured here means nothing.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.benchmarks.in_turn import TIMED
from tests.scripts.benchmarks.scripts import load, quick, run

# Contestants that are enough to run every line of loadax's side and of Grain's, which is the peer that is always there.
# Grain's processes are left to the benchmark, which checks them alike: they import Grain once more for each iterator.
CHOSEN = {
    "images": ["loadax", "numpy", "grain-batches"],
    "rows": ["loadax", "loadax-0", "numpy", "grain-inline"],
    "row-map": ["loadax", "numpy"],
    "transform-wide": ["loadax", "numpy"],
    "transform": ["loadax", "ceiling", "numpy"],
    "jpegs": ["loadax", "loadax-fast", "loadax-pillow", "pillow", "grain-threads-2"],
    "records": ["loadax", "numpy", "grain-inline"],
    "fields": ["loadax", "tensorstore"],
    "raw-fields": ["loadax", "numpy"],
    "raw-tokens": ["loadax", "numpy"],
    "windows": ["loadax", "numpy"],
}
ROWS = {
    "images": 8192,
    "rows": 512,
    "row-map": 512,
    "transform": 512,
    "transform-wide": 512,
    "jpegs": 128,
    "records": 2048,
    "fields": 256,
    "raw-fields": 256,
}


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What the contestants answer, by workload. One process asks all, since most of the time goes into its imports."""
    found: dict[str, Any] = json.loads(run(str(Path(__file__).with_name("in_turn.py")), json.dumps(CHOSEN)))
    return found


@pytest.mark.parametrize("workload", CHOSEN)
def test_all_serve_the_same_rows_and_are_measured(answers: dict[str, Any], workload: str) -> None:
    contestants = answers[workload]
    assert list(contestants) == CHOSEN[workload]
    feeding = {name: each for name, each in contestants.items() if name != "ceiling"}
    # The quick workloads have whole batches only, so that an epoch is every row once, whoever shuffles.
    assert {each["check"]["rows"] for each in feeding.values()} == {ROWS.get(workload, 2048)}
    assert len({each["check"]["digest"] for each in feeding.values()}) == 1
    assert {each["ready"] for each in contestants.values()} == {workload}
    for turn in (each["round"] for each in contestants.values()):
        assert min(turn["rows"], turn["cpu_seconds"], turn["memory"]) > 0
        assert 0 <= turn["others"] <= 1
    firsts = [each["first"] for each in feeding.values()]
    assert workload != TIMED or all(first["cold"] > 0 and first["warm"] > 0 for first in firsts)


def test_who_is_not_installed_is_named_and_the_others_run_with_what_is_measured_besides(tmp_path: Path) -> None:
    everybody = load("contestants").CONTESTANTS["tokens"]
    chosen = {name: everybody[name].needs for name in ("loadax", "grain-inline", "torch-2", "spdl")}
    text, found = quick(tmp_path, "tokens", "--rounds", "1", "--contestants", *chosen)
    lacking = {name: package for name, package in chosen.items() if find_spec(package) is None}
    assert found["missing"] == lacking
    assert all(f"{name}: not installed: {package}" in text for name, package in lacking.items())
    assert not found["failed"]
    assert found["contestants"].keys() == chosen.keys() - lacking.keys()
    assert 0 < found["extras"]["sleep"]["share"] < 1
    assert found["extras"]["resume"]["far"] > 0
    for name, each in found["contestants"].items():
        assert name in text
        assert [turn["rows"] > 0 for turn in each["rounds"]] == [True]
    assert found["extras"]["hour"]["hour"] >= found["extras"]["hour"]["minute"] > 0


def test_a_chunk_shuffle_is_timed_in_whole_epochs_and_its_hosts_read_little_more_than_their_share(
    tmp_path: Path,
) -> None:
    text, found = quick(tmp_path, "chunks", "--rounds", "1")
    assert all(turn["rows"] % 256 == 0 for turn in found["contestants"]["loadax"]["rounds"])
    hosts = found["extras"]["amplification"]
    assert {count: len(each) for count, each in hosts.items()} == {"1": 1, "2": 2, "4": 4}
    for each in hosts.values():
        # So small a store is in TensorStore's own cache in the second of the two epochs.
        assert all(0.5 <= one <= 1.1 for one in each)
        assert all(f"{one:.3f}" in text for one in each)


def test_a_run_that_is_there_is_not_made_again_unless_it_is_of_something_else(tmp_path: Path) -> None:
    arguments = ("run.py", "raw-fields", "--quick", "--rounds", "1", "--contestants", "numpy", "--json", str(tmp_path))
    path = tmp_path / "raw-fields.json"
    first = run(*arguments)
    made = path.read_text()
    assert run(*arguments) == first
    assert path.read_text() == made
    run(*arguments, "--runs", "2")
    two = json.loads(path.read_text())["runs"]
    assert two[0] == json.loads(made)["runs"][0]
    assert len(two) == 2
    run(*arguments, "--fresh")
    assert len(json.loads(path.read_text())["runs"]) == 1
    assert json.loads(path.read_text())["runs"] != two[:1]


def test_a_workload_that_is_not_there_is_named() -> None:
    with pytest.raises(AssertionError, match="no workload is called 'tokenz'; there are tokens, images"):
        run("run.py", "tokenz")


def test_what_rows_a_check_accepts() -> None:
    import numpy as np

    base: Any = load("workloads.base")
    batch = {"x": np.arange(3), "y": np.ones(3)}
    assert base.equal(batch, {"x": np.arange(3), "y": np.ones(3)}) == {}
    with pytest.raises(ValueError, match="a batch differs from the source in its leaf 'y'"):
        base.equal(batch, {"x": np.arange(3), "y": np.zeros(3)})
    with pytest.raises(ValueError, match="a batch differs from the source in its leaf 'batch'"):
        base.equal(np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int64))
    with pytest.raises(ValueError, match=r"a batch has the leaves \['x', 'y'\], the source \['x'\]"):
        base.equal(batch, {"x": np.arange(3)})


def test_what_pictures_a_check_accepts() -> None:
    import numpy as np

    jpegs: Any = load("workloads.jpegs").QUICK[0]
    images = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), np.uint8)
    expected = {"image": images, "label": np.arange(2)}
    assert jpegs.compare(expected, expected) == {"psnr": 99.0}
    near = {"image": images ^ np.uint8(1), "label": np.arange(2)}
    assert jpegs.compare(near, expected) == {"psnr": pytest.approx(20 * np.log10(255))}
    with pytest.raises(ValueError, match="a batch has other labels than its files"):
        jpegs.compare({"image": images, "label": np.zeros(2)}, expected)
    with pytest.raises(ValueError, match=r"a picture is \d\.\d dB from Pillow's; it is another one"):
        jpegs.compare({"image": images[::-1], "label": np.arange(2)}, expected)
