"""Every command refuses what it can't use, in one line that names the option or the path, and writes nothing."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.cli import commands
from loadax.sources.formats import FORMATS
from tests.cli.conftest import Command
from tests.limits import HANG

ROOT = Path(__file__).parents[2]
MODULE = "def group(example): return 1\nclass Opaque: pass\nnumber = 3\n"
FILTER = ("--filter", "refusals_module:group", "--out", "out")

REFUSALS: dict[str, list[tuple[tuple[Any, ...], str]]] = {
    "path": [
        (("convert", "nowhere", "out"), "nowhere does not exist; pass the path or URL of a zarr array or group (a fol"),
        (("convert", "words.txt", "out"), "words.txt is of an unknown kind; pass a zarr array or group"),
        (("convert", "words.npy", "out"), "words.npy is not a .npy file"),
        (("convert", "empty", "out"), "empty contains no zarr array or group of arrays; check the path"),
        (("convert", "foo://x", "out"), "unsupported URL scheme"),
        (("convert", "x.npy", "./x.npy"), "./x.npy overlaps "),
        (("index", "refusals_module:Opaque", *FILTER), "refusals_module:Opaque() returned <"),
        (("verify", "nowhere"), "nowhere contains no zarr array"),
    ],
    "option of another kind of data": [
        (("convert", "c.bin", "out"), "c.bin is a file of tokens: pass --seq-len too"),
        (
            ("convert", "c.bin", "out", "--seq-len", 9, "--columns", "a"),
            "is opened by from_tokens, which takes no --col",
        ),
        (
            ("convert", "x.npy", "out", "--dtype", "int8"),
            "x.npy is opened by from_npy, which takes no --dtype; leave it",
        ),
        (("convert", "x.npy", "out", "--variables", "a"), "x.npy is opened by from_npy, which takes no --columns"),
        (("convert", ".", "out", "--dtype", "int8"), ". is opened by from_npy, which takes no --dtype"),
        (("convert", "x.npy", "out", "--size", 8), "x.npy is opened by from_npy, which takes no --size; leave it out"),
        (("convert", "x.npy", "out", "--pad-to", 8), "x.npy is opened by from_npy, which takes no --pad-to"),
        (
            ("index", "refusals_module:group", *FILTER, "--seq-len", 3),
            "is opened by a function, which takes no --seq-len",
        ),
    ],
    "value": [
        (("convert", "x.npy", "out", "--chunk-rows", 0), "--chunk-rows 0: pass 1 or more"),
        (
            ("convert", "x.npy", "out", "--overwrite", "--shards", "0/2"),
            "--overwrite with shard=(0, 2): what one writes",
        ),
        (("index", "x.npy", "--split-by", "user", "--out", "out"), "key='user' is not the name of one leaf"),
        (
            ("index", "x.npy", "--split-by", "user", "--out", "out", "--key", "a"),
            "--key a applies to --filter and --pack alone; leave it out",
        ),
        (
            ("index", "x.npy", "--records", "--out", "out"),
            "--records is for tar, TFRecord and JSON lines files, which x.npy is not; pass their path",
        ),
        (
            ("index", "refusals_module:group", "--records", "--out", "out"),
            "which refusals_module:group is not; pass their path",
        ),
    ],
    "function": [
        (
            ("index", "x.npy", "--filter", "is_good", "--out", "out"),
            "--filter is_good: pass MODULE:FUNCTION, such as quality:is_good for the",
        ),
        (
            ("index", "x.npy", "--filter", "nowhere_:f", "--out", "out"),
            "--filter nowhere_:f: module nowhere_ can't be imported: No module",
        ),
        (
            ("index", "x.npy", "--filter", "refusals_module:f", "--out", "out"),
            "--filter refusals_module:f: module refusals_module has no such function; check the name",
        ),
        (
            ("index", "x.npy", "--filter", "refusals_module:number", "--out", "out"),
            "--filter refusals_module:number is 3, which is not callable; pass the name of a function",
        ),
        (("index", "x.npy", "--split-by", "no:f", "--out", "out"), "--split-by no:f: module no can't be imported"),
    ],
}

UNPARSED: list[tuple[tuple[Any, ...], str]] = [
    (("index", "x.npy", "--pack", 0, "--out", "out"), "argument --pack: '0' is not a length; pass a number of entries"),
    ((), "COMMAND"),
    (
        ("convert", "a", "b", "--shards", "2/2"),
        "argument --shards: '2/2' is not a share; pass I/N with I from 0 to N - 1",
    ),
    (
        ("convert", "a", "b", "--variables", ","),
        "argument --columns/--variables: ',' has no names; pass names separated",
    ),
    (("convert", "a", "b", "--compression", "lz4"), "argument --compression: invalid choice: 'lz4'"),
    (("convert", "a", "b", "--shuffle", "x"), "argument --shuffle: invalid int value: 'x'"),
    (("convert", "a", "b", "--resume", "--overwrite"), "argument --overwrite: not allowed with argument --resume"),
    (
        ("inspect", "a", "--size", "8xx"),
        "'8xx' is not a size; pass one number for squares, or HEIGHTxWIDTH, such as 224x288",
    ),
    (("inspect", "a", "--size", "8x0"), "'8x0' is not a size"),
    (("index", "a", "--out", "i"), "one of the arguments --filter --split-by --pack --records is required"),
    (("index", "a", "--out", "i", "--filter", "a:b", "--split-by", "c"), "not allowed with argument"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for name in ("words.txt", "c.bin", "words.npy"):
        Path(name).write_text("words")
    Path("empty").mkdir()
    Path("refusals_module.py").write_text(MODULE)
    np.save("x.npy", np.zeros((64, 2)))
    yield
    sys.modules.pop("refusals_module", None)


@pytest.mark.parametrize("kind", REFUSALS)
def test_refusal_is_one_line_that_says_what_to_pass(kind: str, command: Command) -> None:
    for arguments, message in REFUSALS[kind]:
        failed = command(*arguments)
        assert (failed.code, failed.out) == (2, ""), arguments
        assert failed.err.startswith("loadax: error: "), failed.err
        assert message in failed.err
        assert failed.err.count("\n") == 1
        assert not Path("out").exists()


def test_option_that_can_not_be_parsed_is_named(command: Command) -> None:
    for arguments, message in UNPARSED:
        failed = command(*arguments)
        assert (failed.code, failed.out) == (2, ""), arguments
        assert message in failed.err


@pytest.mark.parametrize("name", ["convert", "index", "inspect", "verify"])
def test_help_has_an_example_and_names_all_kinds_of_data(name: str, command: Command) -> None:
    shown = command(name, "--help")
    assert shown.code == 0
    assert f"loadax {name}" in shown.out.split("example", 1)[1]
    ending = " ".join(shown.out.rpartition("SRC is ")[2].split())
    for kind in (*(one.noun for one in FORMATS.values()), "MODULE:FUNCTION"):
        assert kind in ending or name == "verify"
    assert name in command("--help").out


@pytest.mark.processes
def test_commands_import_no_jax() -> None:
    code = "import sys; from loadax.cli.commands import parser; parser(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=HANG).returncode == 0


def test_version(command: Command) -> None:
    assert command("--version").out == f"loadax {loadax.__version__}\n"


def test_completion_by_shtab() -> None:
    shtab = pytest.importorskip("shtab")
    script = shtab.complete(commands.parser(), "bash")
    assert all(word in script for word in ("inspect", "verify", "--seq-len"))
