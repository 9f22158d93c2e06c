"""Paths, folders and patterns become files."""

import re
import subprocess
from pathlib import Path

import pytest

import loadax
from loadax.errors import ArgumentError, StorageError
from loadax.sources.expand import expand_braces
from tests.sources.shards.corpora import write_tar


@pytest.mark.parametrize(
    "pattern",
    [
        "a-{000..003}.tar",
        "{8..11}",
        "{11..8}x",
        "{08..11}",
        "{train,test}/{0..2}.tar",
        "{a,b}{2..1}{x,}",
        "{a,}b",
        "{}",
        "{a}",
        "{1..}",
        "a",
    ],
)
def test_braces_are_those_of_shells(pattern: str) -> None:
    shell = subprocess.run(["bash", "-c", f"printf '%s\\n' {pattern}"], check=True, capture_output=True, text=True)
    assert expand_braces(pattern) == shell.stdout.splitlines()


def test_shards_of_a_brace_pattern(tmp_path: Path) -> None:
    for shard in range(4):
        write_tar(tmp_path / f"a-{shard:03}.tar", {f"{shard}.cls": f"{shard}".encode()})
    data = loadax.from_webdataset(tmp_path / "a-{001..003}.tar", decode=True)
    assert [row["cls"] for row in data] == [1, 2, 3]
    assert len(loadax.from_webdataset([tmp_path / "a-{003..001}.tar", tmp_path / "a-000.tar"])) == 4
    with pytest.raises(StorageError, match=r"a-004\.tar: there is no such file"):
        loadax.from_webdataset(tmp_path / "a-{000..004}.tar")
    for pattern, count in (
        ("{0..10000000}", "10,000,001"),
        ("{0..9999}-{a,b}-{0..999}", "20,000,000"),
        ("{1..9000000000000000000000}", "9,000,000,000,000,000,000,000"),
    ):
        with pytest.raises(
            ArgumentError, match=re.escape(f"a-{pattern}.tar: these are {count} files; pass a folder or a pattern")
        ):
            loadax.from_webdataset(tmp_path / f"a-{pattern}.tar")


def test_braces_of_a_file_name_are_left_alone(tmp_path: Path) -> None:
    write_tar(tmp_path / "{0,1}.tar", {"0.cls": b"7"})
    assert len(loadax.from_webdataset(tmp_path / "{0,1}.tar")) == 1
