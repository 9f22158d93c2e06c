"""`loadax preflight`: the report of a loader that a module has."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command

TRAIN = """
import loadax
import numpy as np

def parse(row):
    if row["x"] == 30:
        raise ValueError("thirty")
    return row

loader = loadax.Dataloader(loadax.from_arrays({"x": np.arange(64.0)}).map(parse), 8)

def make_loader():
    return loader.skip(range(3, 8))

def number():
    return 3
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of a module with loaders, in the current folder."""
    (tmp_path / "train_of_preflight.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "train_of_preflight"
    sys.modules.pop("train_of_preflight", None)


def test_report_and_exit_codes(train: str, command: Command) -> None:
    found = command("preflight", f"{train}:loader")
    assert (found.code, found.err) == (1, "")
    assert "1 row can't be read:\n  quarantine=[30]\n  row 30: ValueError: thirty\n" in found.out
    clean = command("preflight", f"{train}:make_loader")
    assert (clean.code, clean.err) == (0, "")
    assert clean.out.startswith("3 steps, 24 rows, 24 of them distinct and read\nno row fails\n")
    limited = command("preflight", f"{train}:loader", "--steps", 2, "--bounds", "x=1:", "--bounds", "x=:14", "--json")
    assert limited.code == 1
    (values,) = json.loads(limited.out)["values"]
    assert (values["below"], values["above"]) == ([], [15])  # the later bounds of a leaf count


def test_index_and_executor(train: str, tmp_path: Path, command: Command) -> None:
    arguments = "preflight", f"{train}:loader", "--steps", "2:6", "--index", tmp_path / "checked"
    first = command(*arguments, "--executor", "threads:2")
    assert (first.code, (tmp_path / "checked/preflight.json").exists()) == (1, True)
    assert command(*arguments).out == first.out
    refused = command("preflight", f"{train}:loader", "--executor", "threads:2")
    assert (refused.code, "executor= needs index=, a folder" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}:number"], "LOADER {}:number is 3, not a Dataloader; pass the name of one, or of a function that returns"),
        (["{}:nothing"], "LOADER {}:nothing: module {} has no such function; check the name"),
        (["{}:loader", "--steps", "many"], "'many' is not a number of steps; pass such as 1000, or 500:1000"),
        (["{}:loader", "--bounds", "x"], "'x' is not a leaf with bounds; pass such as label=0:999, or x=:1"),
        (["{}:loader", "--bounds", "x=a:b"], "'x=a:b' is not a leaf with bounds"),
        (["{}:loader", "--bounds", "y=0:1"], "bounds: "),
    ],
)
def test_refusals(train: str, command: Command, arguments: list[str], message: str) -> None:
    outcome = command("preflight", *(argument.format(train) for argument in arguments))
    assert outcome.code == 2
    assert message.replace("{}", train) in outcome.err
