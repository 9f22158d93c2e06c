"""The skill of coding agents: its front matter, and its script, which finds what is wrong with a loader.

Its code is run by test_docs.py.
"""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from tests import forkserver

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills/loadax"
TRAIN = """
import numpy as np
import loadax

data = loadax.from_arrays({"x": np.arange(400.0), "label": np.arange(400) % 10})
train, validation = data.split(0.8, seed=0)

def make_loader():
    return loadax.Dataloader(train.shuffle(seed=1), batch_size=16, num_epochs=2)

def make_validation():
    return validation

def make_endless():
    return loadax.Dataloader(train.shuffle(seed=1), batch_size=16, num_epochs=None)

def make_leak():
    return data[:100]

def make_broken():
    rows = data.map_batch(lambda batch: {"x": np.where(batch["x"] == 7, np.nan, batch["x"])})
    return loadax.Dataloader(rows, batch_size=16)

seeds = iter(range(100))

def make_other_each_time():
    return loadax.Dataloader(train.shuffle(seed=next(seeds)), batch_size=16)

def make_stream():
    stream = loadax.from_stream(lambda lane, lanes: ({"x": np.float32(row)} for row in range(100)), lanes=1)
    return loadax.Dataloader(stream, batch_size=16)

def make_mixing():
    rows = data.map_batch(lambda batch: {"x": batch["x"] - batch["x"].mean()})
    return loadax.Dataloader(rows, batch_size=16)
"""


def check(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit code of the script, and what it says of each check."""
    (folder / "train.py").write_text(TRAIN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = forkserver.run([SKILL / "scripts/check_loader.py", *arguments], cwd=folder, env=environment)
    return run.returncode, re.findall(r"^(?:passed|FAILED) .*", run.stdout, re.MULTILINE)


def test_front_matter_names_the_folder_and_says_when_to_use_it() -> None:
    _, front, body = (SKILL / "SKILL.md").read_text("utf-8").split("---\n", 2)
    found = yaml.safe_load(front)
    assert set(found) == {"name", "description"}
    assert found["name"] == SKILL.name
    assert " Use when " in found["description"]
    assert len(found["description"]) <= 1024
    assert len(body.splitlines()) < 500  # what an agent reads at once


@pytest.mark.parametrize("loader", ["make_loader", "make_endless"])
def test_a_sound_loader_passes(loader: str, tmp_path: Path) -> None:
    code, lines = check(tmp_path, f"train:{loader}", "--validation", "train:make_validation", "--steps", "10")
    assert code == 0, lines
    assert [line.split(":")[0] for line in lines] == [
        "passed source, maps and runs",
        "passed digest",
        "passed preflight",
        "passed report",
        "passed no shared row",
    ]


@pytest.mark.parametrize(
    ("arguments", "failed"),
    [
        (["train:make_loader", "--validation", "train:make_leak"], ["FAILED no shared row", "ConformanceError"]),
        (["train:make_broken"], ["FAILED preflight", "AssertionError"]),
        (["train:make_other_each_time"], ["FAILED digest", "AssertionError"]),
        (["train:make_mixing"], ["FAILED source, maps and runs", "ConformanceError"]),
    ],
)
def test_a_loader_with_a_mistake_fails(arguments: list[str], failed: list[str], tmp_path: Path) -> None:
    code, lines = check(tmp_path, *arguments, "--steps", "20")
    assert code == 1
    assert [line.split(": ")[:2] for line in lines if line.startswith("FAILED")] == [failed]


def test_a_stream_is_read_and_reported(tmp_path: Path) -> None:
    code, lines = check(tmp_path, "train:make_stream", "--steps", "20")
    assert (code, [line.split(":")[0] for line in lines]) == (0, ["passed report"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "train has no colon; pass MODULE:FUNCTION, such as train:make_loader"),
        (["train:make"], "module 'train' has no attribute 'make'; pass MODULE:FUNCTION"),
        (["trian:make_loader"], "No module named 'trian'; pass MODULE:FUNCTION"),
        (["train:make_loader", "--validation", "train:nothing"], "no attribute 'nothing'; pass MODULE:FUNCTION"),
        (["train:make_validation"], "second part, 71 rows)); return a loadax.Dataloader"),
        (["train:make_loader", "--steps", "0"], "--steps 0: pass 1 or more"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["check_loader.py", *arguments])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "train", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SKILL / "scripts/check_loader.py"), run_name="__main__")
    sys.modules.pop("train", None)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
