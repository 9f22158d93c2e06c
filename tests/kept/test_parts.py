"""PartsFolder: the parts of a pass, as processes with one folder claim and finish them; here in one process."""

import logging
from pathlib import Path

import numpy as np
import pytest

from loadax.kept import parts as module
from loadax.kept.parts import PartsFolder
from tests.limits import until

ARRAYS = {"values": np.arange(3)}


def folder(path: Path, count: int, told: list[int]) -> PartsFolder:
    made = PartsFolder(path / "x.parts", "filter x", count, told.append)
    made.make()
    return made


def finish(parts: PartsFolder, part: int) -> None:
    parts.put(part, ARRAYS)
    parts.finish(part)


def test_every_part_is_told_once_whoever_finishes_it(tmp_path: Path) -> None:
    """A progress bar counts them: it ends at the number of all rows."""
    told: list[list[int]] = [[], []]
    first, second = (folder(tmp_path, 5, numbers) for numbers in told)
    with first.joined(), second.joined():
        for _ in range(2):
            part = first.claim()
            assert part is not None
            finish(first, part)
        while (part := second.claim()) is not None:
            finish(second, part)
        assert first.claim() is None
        first.put(5, ARRAYS)  # a file that has the name of the merge is no part
        assert first.is_complete()
        assert second.is_complete()
        assert not first.claim_merge()
    assert [sorted(numbers) for numbers in told] == [[*range(5)]] * 2


def test_process_that_has_nothing_to_do_says_whom_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "NOTICE", 1e-6)
    first = folder(tmp_path, 2, [])
    second = folder(tmp_path, 2, [])
    with first.joined(), second.joined(), caplog.at_level(logging.WARNING, "loadax"):
        assert (first.claim(), second.claim()) == (0, 1)
        assert second.claim() is None
        assert caplog.messages == []  # it works on part 1 meanwhile
        finish(second, 1)
        until(lambda: second.claim() is None and caplog.messages)
        (name,) = second.others()
        assert f"filter x: waiting for 1 of 2 parts that other processes work on: {name}" in caplog.messages


def test_mark_of_a_worker_ends_with_its_part(tmp_path: Path) -> None:
    """A mark that stays keeps others from the part until it looks dead; one that is missing has it computed twice."""
    first, second = (folder(tmp_path, 1, []) for _ in range(2))
    mark = tmp_path / "x.parts" / "0.worker"
    with first.computing(0):
        assert mark.is_symlink()
    assert not mark.is_symlink()
    copies = [worker.computing(0) for worker in (first, second)]
    for copy in copies:
        copy.__enter__()
    copies[0].__exit__(None, None, None)
    assert mark.is_symlink()  # the second copy is computed still
    copies[1].__exit__(None, None, None)
    assert not mark.is_symlink()


def test_fresh_claim_without_a_sign_of_life_stands(tmp_path: Path) -> None:
    parts = folder(tmp_path, 1, [])
    with parts.joined():
        (tmp_path / "x.parts" / "0.claim").symlink_to("host.1.abc")
        assert parts.claim() is None


def test_worker_gives_signs_of_life_while_it_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOUCH", 0.01)
    mark = tmp_path / "x.parts" / "0.worker"
    with folder(tmp_path, 1, []).computing(0):
        begun = mark.lstat().st_mtime_ns
        until(lambda: mark.lstat().st_mtime_ns > begun)
