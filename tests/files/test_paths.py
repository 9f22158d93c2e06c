"""Paths as users pass them: relative ones, and what can't be a path, at every place that takes one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.cli.program import main
from loadax.errors import ArgumentError, LoadaxError
from loadax.files.paths import local_path
from tests.formats.samples import SAMPLES

LONG = "x" * 5000
OPENERS: dict[str, Callable[[Any], Any]] = {
    **{name: sample.open for name, sample in SAMPLES.items()},
    "from_documents": loadax.from_documents,
    "write_zarr": lambda path: loadax.write_zarr(np.arange(4), path, progress=False),
    "cache": lambda path: loadax.from_arrays(np.arange(4)).cache(path, progress=False),
    "filter": lambda path: loadax.from_arrays(np.arange(4)).filter(lambda x: x >= 0, index=path, progress=False),
    "pack": lambda path: loadax.from_source([np.arange(4)]).pack(4, index=path, progress=False),
    "from_npy(cache=)": lambda path: loadax.from_npy("http://127.0.0.1:9/a.npy", cache=path),
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(
    "path", ["", "a\0b", "/tmp/a\0b", "file:///tmp/a%00b", LONG, f"/tmp/{LONG}", "a/" * 2500 + "b"]
)
def test_what_can_be_no_path(opener: str, path: str) -> None:
    with pytest.raises(LoadaxError, match=r"is empty|NUL character|has \d+ characters; a path has at most") as caught:
        OPENERS[opener](path)
    assert len(str(caught.value)) < 400
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize("opener", [name for name in OPENERS if name not in SAMPLES])
@pytest.mark.parametrize("path", [3, 2.5, b"bytes", object()])
def test_what_is_no_path(opener: str, path: Any) -> None:
    with pytest.raises(LoadaxError):
        OPENERS[opener](path)


@pytest.mark.parametrize("path", ["", "a\0b", LONG])
def test_on_the_command_line(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.arange(10))
    for arguments in ((path, str(tmp_path / "b")), (str(tmp_path / "a.npy"), path)):
        assert main(["convert", *arguments]) == 2
        assert "loadax: error: path=" in capsys.readouterr().err


def test_of_timelines(tmp_path: Path) -> None:
    loader = loadax.Dataloader(loadax.from_arrays({"x": np.arange(16)}), batch_size=8, num_epochs=1)
    paths: list[Any] = ["", "a\0.json", 3]
    with loader.iterate() as batches:
        for path in paths:
            with pytest.raises(ArgumentError, match="path="):
                batches.timeline(path)


class TestTheFolderAbove:
    def test_in_every_place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        rows = loadax.from_arrays({"x": np.arange(20)})
        loadax.write_zarr(rows, "../w.zarr", progress=False)
        assert (tmp_path / "w.zarr" / "zarr.json").exists()
        for path in (
            "../w.zarr",
            Path("../w.zarr"),
            f"{tmp_path}/here/../w.zarr",
            "../here/../w.zarr",
            f"file://{tmp_path}/here/../w.zarr",
        ):
            assert loadax.from_zarr(path)[3] == {"x": 3}, path
        assert rows.cache("../c.zarr", progress=False)[3] == rows.cache("../c.zarr", progress=False)[3] == {"x": 3}
        np.save("../a.npy", np.arange(7))
        assert len(loadax.from_npy("../a.npy")) == 7
        assert main(["convert", "../a.npy", "../out.zarr"]) == 0
        assert main(["verify", "../out.zarr"]) == 0
        assert main(["inspect", "../out.zarr"]) == 0
        assert len(loadax.from_zarr("../out.zarr")) == 7
        filtered = rows.filter(lambda example: example["x"] > 3, index="../f.idx", progress=False)
        assert len(filtered) == 16
        assert (tmp_path / "f.idx").exists()

    def test_behind_a_link_is_that_of_the_folder_it_points_to(self, tmp_path: Path) -> None:
        (tmp_path / "deep" / "er").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
        assert local_path(tmp_path / "link" / ".." / "a") == tmp_path / "deep" / "a"
        assert local_path(tmp_path / "link" / "a") == tmp_path / "link" / "a"  # as it was passed

    def test_of_a_zip_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(LoadaxError, match=r"no zip|not there|no zarr"):
            loadax.from_zarr("../nothing.zip")
