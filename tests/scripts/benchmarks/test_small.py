"""Each of the small benchmarks runs and says something of every part. What they measure here means nothing."""

import json
from pathlib import Path

import pytest

from tests.scripts.benchmarks.scripts import FOLDER, load, run

MOST_CALLS = 67  # of a next() that reads one step, as on a busy machine; fewer if it reads several


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        ("balance.py --files 40 --seq-lens 64 --steps 1", {"functions": 2, "docstrings": 2, "files": 2}),
        ("buckets.py --rows 9000 --batches 2 --rounds 1", {"sentences": 2, "documents": 2}),
        ("neighbours.py --rows 300 --rounds 1", {"huggingface": 6, "grain in": 3, "grain out": 8}),
        (
            "packed_graphs.py --graphs 300 --rounds 1 --batches 8",
            {"8 x graphs loadax": 1, "1 x graphs loadax": 1, "shift": 3},
        ),
        (
            "packing_streams.py --only easylm --rounds 1 --seconds 0.1 --documents 1000 --vocabulary 500",
            {"tokens: SentencePiece": 1, "easylm": 4},
        ),
        (
            "packing_documents.py --rounds 1 --steps 2 --warm-up 2",
            {"to_stream": 2, "pack ": 1, "Grain": 1, "EasyLM": 1},
        ),
        (
            "packing_documents.py --lines bytes --documents 1000 --rounds 1 --steps 2 --warm-up 2",
            {"to_stream": 2, "EasyLM": 1},
        ),
        ("passes.py --rows 2000 --engines thread", {"| thread": 1, "payload of": 4}),
        ("pictures.py --pairs 256 --rounds 1 --seconds 0.05", {"loadax": 1, "tf.data": 1}),
        ("shards.py --images 128 --rounds 1", {"folder": 1, "tar": 2}),
        ("weather_windows.py --rounds 1 --hours 200", {"loadax": 1, "reader": 1, "ratio": 1}),
    ],
)
def test_benchmark_has_a_line_for_every_part(command: str, starts: dict[str, int]) -> None:
    script, *arguments = command.split()
    lines = run(script, *arguments).splitlines()
    for part, count in starts.items():
        assert sum(line.startswith(part) for line in lines) == count


def test_seeing_has_two_lines_for_every_case() -> None:
    assert sum("for seeing" in line for line in run("seeing.py", "1").splitlines()) == 18


def test_few_calls_of_one_next_cross_from_file_to_file() -> None:
    calls, *_ = run("calls_per_next.py").split()
    assert 0 < float(calls) <= MOST_CALLS


def test_device_keeps_every_way(tmp_path: Path) -> None:
    small = ("--rows", "128", "--batch", "16", "--width", "16", "--rounds", "1", "--seconds", "0.05")
    text = run("device.py", *small, "--json", str(tmp_path / "device.json"))
    found = json.loads((tmp_path / "device.json").read_text())
    assert set(found["ways"]) == {"one batch", "device_map", "keep_on_device", "map on the host", "nothing read ahead"}
    assert found["ways"]["one batch"]["ratio"] == 1
    assert all(name in text and way["step_ms"] > 0 for name, way in found["ways"].items())


def test_micro_keeps_every_stage(tmp_path: Path) -> None:
    text = run("micro.py", "--quick", "--json", str(tmp_path / "micro.json"))
    found = json.loads((tmp_path / "micro.json").read_text())["stages"]
    assert {"permute 256 of 50,000", "plan 8 x 1,024, shuffled", "assemble 8 x 256 tokens"} <= found.keys()
    assert {"place 1,024 images", "assemble 1 x 256 records", "by hand: gather 256 records"} <= found.keys()
    assert all(stage in text and times["seconds"] > 0 for stage, times in found.items())


def test_packing_has_a_line_for_every_method(tmp_path: Path) -> None:
    arguments = ["--documents", "3000", "--grain", "300", "--seq-len", "512", "--json", str(tmp_path / "packing.json")]
    lines = run("packing.py", *arguments).splitlines()
    kept = json.loads((tmp_path / "packing.json").read_text())["packing"]
    for method in ("split", "first_fit", "best_fit"):
        beside, alone = (line for line in lines if line.startswith(method))
        assert f"{kept[f'{method} beside Grain']['grain_full']:.3%}" in beside
        assert f"{kept[method]['full']:.3%}" in alone


def test_floors_keep_every_case_and_what_is_before(tmp_path: Path) -> None:
    path, cases = (
        tmp_path / "floors.json",
        ["tokens-64", "function"],
    )
    text = run("floors.py", *cases, "--quick", "--package", str(FOLDER.parent), "--json", str(path))
    found = json.loads(path.read_text())["floors"]
    assert list(found) == cases
    for name, case in found.items():
        assert name in text
        [measured] = case["runs"]
        assert all(measured[side]["cpu"] > 0 and measured[side]["rate"] > 0 for side in ("before", "after"))


def test_unknown_floor_is_named() -> None:
    with pytest.raises(AssertionError, match="no case is called 'token'; there are tokens-1024, "):
        run("floors.py", "token")


def test_floors_gather_the_rows_of_loadax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    floors = load("floors")
    for name in ("tokens-64", "images", "windows", "parquet-1024", "loop-8"):
        case = floors.CASES[name]
        folder = tmp_path / name
        folder.mkdir()
        case.quick.write(folder)
        for side in ("floor", "after"):
            measured = case.prepared(side, folder, quick=True)
            assert measured.check(batches=1)["rows"] == case.quick.batch_size, side


def test_accelerators_keep_every_loader(tmp_path: Path) -> None:
    path = tmp_path / "accelerators.json"
    text = run("accelerators.py", "--quick", "--accelerators", "1", "--json", str(path))
    found = json.loads(path.read_text())["accelerators"]
    assert list(found) == ["resnet50", "unet3d"]
    for model, entry in found.items():
        assert {"loadax", "grain"} <= set(entry["loaders"])
        for name, loader in entry["loaders"].items():
            assert f"{model}, 1 accelerators, {name}" in text
            assert 0 < loader["measured"]["1"]["utilisation"] <= 1


def test_the_most_accelerators_are_those_at_nine_tenths() -> None:
    most = load("accelerators").most
    assert most({"1": {"utilisation": 0.95}, "2": {"utilisation": 0.91}, "4": {"utilisation": 0.5}}) == 2
    assert most({"1": {"utilisation": 0.1}}) == 0
