"""`loadax bench` as its users meet it."""

import importlib
import io
import json
import re
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

import loadax
from loadax.cli import bench as cli_bench
from tests.cli.conftest import Command
from tests.clocks import Machine
from tests.sources.shards.corpora import encoded, write_tar, write_tfrecord
from tests.worker_types import WORKER_TYPES

QUICK = ("--seconds", "0.3", "--step", "2")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A simulated machine: a look at the clock takes a millisecond, and besides only a map that says so takes time."""
    machine = Machine(monkeypatch)
    machine.tick = 2.0**-10
    monkeypatch.setattr(cli_bench, "time", SimpleNamespace(perf_counter=machine.perf_counter, sleep=machine.sleep))
    return machine


@pytest.fixture
def images(tmp_path: Path) -> str:
    np.save(tmp_path / "images.npy", np.zeros((4096, 8, 8), np.uint8))
    return str(tmp_path / "images.npy")


@pytest.fixture
def module(tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's, in the folder that the command is given in.

    Its map is slow on the simulated machine, and by the clock of a worker.
    """
    source = (
        "import sys, loadax\nfrom loadax.loader.metrics import stages\n\nnow = [0.0]\n"
        "def work(seconds):\n    now[0] += seconds\n\n"
        "if 'jax' not in sys.modules:\n    stages.perf_counter = stages.thread_time = lambda: now[0]\n\n"
        "def slow(x):\n    work(1e-4)\n    return x\n\n"
        "def noisy(x, rng):\n    return x + rng.integers(3)\n\n"
        "def few():\n    return loadax.from_npy('images.npy')[:59]\n\nnumber = 3\n"
    )
    (tmp_path / "bench_maps.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bench_maps", raising=False)
    monkeypatch.setattr(importlib.import_module("bench_maps"), "work", machine.work)
    return "bench_maps"


def test_bench_prints_every_line(images: str, command: Command) -> None:
    code, out, err = command("bench", images, "--batch-size", 64, "--shuffle", 3, *QUICK)
    assert (code, err) == (0, "")
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert list(lines) == [
        "data",
        "first batch",
        "throughput",
        "processor",
        "memory",
        "work",
        "what limits it",
        "steps of 2 ms",
    ]
    assert lines["data"] == "Dataset(4096 rows of arrays memory-mapped.shuffle(3)), on 8 cpu devices"
    assert re.fullmatch(r"\d+ ms after iter\(loader\)", lines["first batch"])
    assert re.fullmatch(
        r"[\d,]+ rows/s, [\d.]+ \w+/s, [\d,]+ batches/s of 64 rows, nothing between them", lines["throughput"]
    )
    assert lines["steps of 2 ms"].startswith("training waited ")


@pytest.mark.parametrize("kind", WORKER_TYPES)
def test_figures_for_programs(
    images: str, module: str, kind: str, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    def getrusage(who: int) -> Any:
        """Processor time is only that of children that have ended."""
        found = resource.getrusage(who)
        return (
            found
            if who == resource.RUSAGE_CHILDREN
            else SimpleNamespace(ru_utime=0.0, ru_stime=0.0, ru_maxrss=found.ru_maxrss)
        )

    monkeypatch.setattr(cli_bench, "resource", SimpleNamespace(**{**vars(resource), "getrusage": getrusage}))
    arguments = ("--map", f"{module}:slow", "--worker-type", kind, "--num-workers", 1, "--batch-size", 64, "--json")
    code, out, err = command("bench", images, *arguments, *QUICK, "--seconds", 1)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["rows_per_second"] == pytest.approx(64 * found["steps"] / found["seconds"])
    assert found["bytes_per_second"] == pytest.approx(64 * found["rows_per_second"])  # of rows of 64 bytes
    assert 1 <= found["seconds"] < 1.1
    assert found["bottleneck"] == "transform"
    assert found["shares"]["transform"] > 0.5
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert (found["cpu_seconds_per_million_rows"] > 0) == (kind == "process")
    assert found["peak_memory"] > 10 << 20


def test_a_dataset_that_a_function_makes(images: str, module: str, command: Command) -> None:
    """Of few rows as many as the devices can share; a map that wants a generator gets one."""
    code, out, err = command("bench", f"{module}:few", "--map", f"{module}:noisy", "--num-workers", 0, *QUICK)
    assert (code, err) == (0, "")
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert re.search(r"\[0:59\]\.map\(noisy \(.*\), rng=True\)\), on 8 cpu devices", lines["data"])
    assert "batches/s of 56 rows" in lines["throughput"]
    assert lines["work"].endswith(", on the training thread")
    assert lines["what limits it"].endswith("; leave --num-workers out, so that it is done while training goes on")
    code, out, err = command("bench", f"{module}:few", "--pad-to", 3, *QUICK)
    assert (code, out) == (2, "")
    assert f"{module}:few is opened by a function, which takes no --pad-to" in err


def test_processor_time_is_that_of_this_process_and_its_children(
    images: str, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    def getrusage(who: int) -> Any:
        calls.append(who)
        spent = float(len(calls)) if who == resource.RUSAGE_CHILDREN else 0.0
        return SimpleNamespace(ru_utime=spent, ru_stime=2 * spent, ru_maxrss=20 << 10)

    calls: list[int] = []
    monkeypatch.setattr(cli_bench, "resource", SimpleNamespace(**{**vars(resource), "getrusage": getrusage}))
    code, out, _ = command("bench", images, "--num-workers", 0, "--batch-size", 64, "--json", *QUICK)
    found = json.loads(out)
    assert code == 0
    assert set(calls) == {resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN}
    assert found["cpu_seconds_per_million_rows"] == pytest.approx(6e6 / (64 * (found["steps"] + 1)))


def test_bottleneck_of_few_steps(images: str, module: str, command: Command) -> None:
    arguments = (images, "--map", f"{module}:slow", "--batch-size", 2048, "--num-workers", 1, "--seconds", 0.05)
    code, out, _ = command("bench", *arguments, "--json")
    found = json.loads(out)
    assert (code, found["bottleneck"], found["advice"]) == (0, "transform", None)
    assert found["steps"] < 10
    _, out, _ = command("bench", *arguments)
    assert "the map; there were too few steps for advice, so pass more --seconds\n" in out


@pytest.mark.parametrize("below", ["", "2020/May"])
def test_a_folder_of_images(below: str, tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "pictures"
    for name in (f"cat/{below}", f"dog/{below}"):
        (folder / name).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (12, 10), "teal").save(folder / name / f"{number}.png")
    code, out, err = command("bench", folder, "--size", "6x4", "--batch-size", 8, "--json", *QUICK)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["bytes_per_second"] == pytest.approx((6 * 4 * 3 + 4) * found["rows_per_second"])
    # The same kinds of data can be written to stores.
    assert command("convert", folder, tmp_path / "out.zarr", "--size", "5").code == 0
    assert zarr.open_array(tmp_path / "out.zarr" / "image").shape == (16, 5, 5, 3)


@pytest.mark.parametrize("ending", ["array_record", "arrayrecord"])
@pytest.mark.parametrize("given", ["file", "folder", "pattern"])
def test_array_record_files(given: str, ending: str, tmp_path: Path, command: Command) -> None:
    writer = ArrayRecordWriter(str(tmp_path / f"train.{ending}"), "group_size:1")
    for number in range(32):
        writer.write(np.arange(number, dtype=np.uint16).tobytes())
    writer.close()
    path = {"file": tmp_path / f"train.{ending}", "folder": tmp_path, "pattern": tmp_path / f"*.{ending}"}[given]
    arguments = (path, "--dtype", "uint16", "--pad-to", 40, "--batch-size", 8, "--json")
    code, out, err = command("bench", *arguments, *QUICK)
    assert (code, err) == (0, "")
    assert json.loads(out)["rows_per_second"] > 0


@pytest.mark.parametrize("given", ["file", "folder", "pattern"])
def test_tar_files(given: str, tmp_path: Path, command: Command) -> None:
    image = io.BytesIO()
    Image.new("RGB", (9, 7), "teal").save(image, "PNG")
    shards = tmp_path / "shards"
    files = {f"{row}.{end}": part for row in range(16) for end, part in (("png", image.getvalue()), ("cls", b"3"))}
    write_tar(shards / "0.tar", files)
    path = {"file": shards / "0.tar", "folder": shards, "pattern": shards / "*.tar"}[given]
    out = command("inspect", path).out
    assert "16 examples (cls, png) in 1 tar file\n" in out
    assert re.search(r"png\S*\s+7 x 9 x 3\s+uint8", out)
    assert command("convert", path, tmp_path / "out.zarr", "--size", "4x6", "--variables", "png").code == 0
    assert zarr.open_array(tmp_path / "out.zarr" / "png").shape == (16, 4, 6, 3)


def test_tfrecord_files(tmp_path: Path, command: Command) -> None:
    path = write_tfrecord(tmp_path / "train.tfrecord-00000-of-00001", [b"one", b"two"])
    assert "2 records" in command("inspect", path).out
    assert "convert it to numbers in a map" in command("convert", path, tmp_path / "out.zarr").err
    message = "has no feature 'x', since it is not a tf.train.Example; leave --columns out"
    assert message in command("inspect", path, "--columns", "x").err


def test_tfrecord_files_of_examples(tmp_path: Path, command: Command) -> None:
    """Features are those of the first record, but for lists of several byte strings, and of nothing."""
    some = {"name": [b"n"], "words": [b"a", b"b"], "none": []}
    records = [encoded({"x": np.array([row]), "v": np.arange(2) / 4 + row, **some}) for row in range(3)]
    write_tfrecord(tmp_path / "0.tfrecord", [])
    write_tfrecord(tmp_path / "1.tfrecord", records)
    shown = command("inspect", tmp_path).out
    (line,) = (line.strip() for line in shown.splitlines() if "loadax.from_tfrecord" in line)
    assert "features={'name': bytes, 'v': ('float32', 2), 'x': 'int64'}" in line
    opened = eval(line.replace("(seed)", "(0)"), {"loadax": loadax})
    assert sorted(int(example["x"]) for example in opened) == [0, 1, 2]
    assert command("convert", tmp_path, tmp_path / "out.zarr", "--columns", "x,v").code == 0
    assert loadax.from_zarr(tmp_path / "out.zarr").read([2])["v"].tolist() == [[2.0, 2.25]]
    assert "has no feature 'y', but name, v, x; pass these" in command("inspect", tmp_path, "--columns", "y").err
