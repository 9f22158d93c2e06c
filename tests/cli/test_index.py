"""`loadax index`: what it builds is what a run then reads."""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from loadax import from_npy, from_zarr
from loadax.cli import main
from loadax.writing.write import write_zarr
from tests.writing.rows import TreeRows

QUALITY = '''
import loadax

LIMIT = 10

def is_good(example):
    """Whether to train on it."""
    return helper(example)

def helper(example):
    return bool(example > LIMIT)

def group(example):
    return int(example) // 3

def twice():
    return loadax.from_npy("x.npy").map(double)

def double(example):
    return example * 2

class Opaque:
    def __call__(self, example):
        return True

opaque = Opaque()
number = 3
'''


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Outcome]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    Path("index_quality.py").write_text(QUALITY)
    np.save("x.npy", np.arange(30))

    def run(*arguments: Any) -> Outcome:
        capfd.readouterr()
        try:
            code = main(["index", *map(str, arguments)])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Outcome(code, *capfd.readouterr())

    yield run
    sys.modules.pop("index_quality", None)


def read_only(log: pytest.LogCaptureFixture) -> bool:
    """Whether the last run found its index."""
    return [record.getMessage().rpartition(": ")[2] for record in log.records] == ["read"]


def test_a_filter(command: Callable[..., Outcome], caplog: pytest.LogCaptureFixture) -> None:
    done = command("x.npy", "--filter", "index_quality:is_good", "--out", "good", "--workers", 2)
    assert done == (0, "good: keeps 19 of 30 rows\n", f"loadax: index {Path('good').absolute()}/filter.json: written\n")
    assert command("x.npy", "--filter", "index_quality:is_good", "--out", "good").err.endswith(
        "good/filter.json: read\n"
    )
    quality = sys.modules["index_quality"]
    caplog.clear()
    caplog.set_level(logging.INFO, "loadax")
    assert len(from_npy("x.npy").shuffle(0).filter(quality.is_good, index="good")) == 19
    assert read_only(caplog)


def test_groups_by_function_and_by_leaf(command: Callable[..., Outcome], caplog: pytest.LogCaptureFixture) -> None:
    write_zarr(TreeRows({"user": np.arange(40) // 4, "x": np.arange(40)}), "s")
    assert command("s", "--split-by", "user", "--out", "users").out == "users: knows the groups of 40 rows\n"
    assert command("s", "--split-by", "user", "--variables", "user", "--out", "others").code == 0
    assert (
        command("x.npy", "--split-by", "index_quality:group", "--out", "groups").out
        == "groups: knows the groups of 30 rows\n"
    )
    caplog.clear()
    caplog.set_level(logging.INFO, "loadax")
    from_zarr("s").split_by("user", 0.8, 3, index="users")
    assert read_only(caplog)


def test_a_dataset_of_a_function(command: Callable[..., Outcome]) -> None:
    done = command("index_quality:twice", "--filter", "index_quality:is_good", "--out", "good")
    assert (done.code, done.out) == (0, "good: keeps 24 of 30 rows\n")


def test_a_key_for_what_can_not_be_recognised(command: Callable[..., Outcome]) -> None:
    failed = command("x.npy", "--filter", "index_quality:opaque", "--out", "i")
    assert (failed.code, failed.out) == (2, "")
    assert "loadax: error: i was not written: changes of the function can't be detected; pass --key\n" in failed.err
    assert command("x.npy", "--filter", "index_quality:opaque", "--out", "i", "--key", "v1").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("x.npy", "--filter", "is_good"),
            "--filter is_good: pass MODULE:FUNCTION, such as quality:is_good for the function is_good",
        ),
        (
            ("x.npy", "--filter", "nowhere_at_all:f"),
            "--filter nowhere_at_all:f: module nowhere_at_all can't be imported: No module",
        ),
        (
            ("x.npy", "--filter", "index_quality:bad"),
            "--filter index_quality:bad: module index_quality has no such function; check the name",
        ),
        (
            ("x.npy", "--filter", "index_quality:number"),
            "--filter index_quality:number is 3, which is not callable; pass the name of a function",
        ),
        (("x.npy", "--split-by", "user"), "key='user' is not the name of one leaf"),
        (
            ("x.npy", "--split-by", "user", "--key", "a"),
            "--key a applies to --filter, not to --split-by; leave it out",
        ),
        (("y.npy", "--filter", "index_quality:is_good"), "y.npy does not exist"),
        (
            ("index_quality:group", "--filter", "index_quality:is_good", "--seq-len", "3"),
            "is opened by a function, which takes no --seq-len",
        ),
        (("index_quality:Opaque", "--filter", "index_quality:is_good"), "index_quality:Opaque() returned <"),
    ],
)
def test_one_line_says_what_is_wrong(arguments: tuple[str, ...], message: str, command: Callable[..., Outcome]) -> None:
    failed = command(*arguments, "--out", "i")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("loadax: error: ")
    assert message in failed.err
    assert failed.err.count("\n") == 1
    assert not Path("i").exists()


def test_it_must_be_said_what_to_look_for(command: Callable[..., Outcome]) -> None:
    assert "one of the arguments --filter --split-by is required" in command("x.npy", "--out", "i").err
    assert "not allowed with argument" in command("x.npy", "--out", "i", "--filter", "a:b", "--split-by", "c").err


def test_help_has_an_example(command: Callable[..., Outcome]) -> None:
    shown = command("--help")
    assert shown.code == 0
    assert "loadax index " in shown.out.split("examples", 1)[1]
