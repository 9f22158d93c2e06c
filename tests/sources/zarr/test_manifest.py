"""Whole, half-written and foreign stores are told apart by two small files."""

import json
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts

from loadax.errors import SourceError
from loadax.sources.zarr.manifest import check_finished


def check(path: Path) -> dict[str, Any] | None:
    return check_finished(ts.KvStore.open(f"file://{path}/").result(), "here")


def test_a_foreign_store(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text("{}")
    assert check(tmp_path) is None
    assert check(tmp_path / "nowhere") is None


def test_a_whole_store(tmp_path: Path) -> None:
    manifest = {"version": 1, "rows": 3}
    (tmp_path / "loadax.json").write_text(json.dumps(manifest))
    assert check(tmp_path) == manifest
    (tmp_path / "loadax.partial.json").write_text("{}")  # its writer was stopped before he had tidied up
    assert check(tmp_path) == manifest


def test_a_half_written_store(tmp_path: Path) -> None:
    (tmp_path / "loadax.partial.json").write_text("{}")
    with pytest.raises(
        SourceError,
        match=r"^here: the store is unfinished \(loadax\.json is missing\); resume with `loadax convert … --resume` or "
        r"write_zarr\(\.\.\., resume=True\), or delete it$",
    ):
        check(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"version": 2}',
            r"here: loadax\.json has version 2, and this loadax reads 1; read the store with the loadax version that",
        ),
        ("{}", r"here: loadax\.json has version None, and this loadax reads 1"),
        ("{", r"here: loadax\.json is not valid JSON \(.*\); was it cut short\? Copy it again"),
        ("\xff", r"here: loadax\.json is not valid JSON"),
        ("[1]", r"here: loadax\.json contains a list, not an object; copy it again"),
    ],
)
def test_a_manifest_that_cannot_be_read(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "loadax.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(SourceError, match=message):
        check(tmp_path)
    (tmp_path / "loadax.json").unlink()
    (tmp_path / "loadax.partial.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(SourceError):
        check(tmp_path)
