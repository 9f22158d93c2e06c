"""What a worker of an executor does for a pass: it computes each part that is not finished, and none after the end."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.kept.parts import PartsFolder
from loadax.kept.pass_work import PartTask
from tests.limits import HANG


class Squares:
    label, unit, sizes = "squares", "row", (2, 2, 2)

    def __init__(self) -> None:
        self.parts: list[int] = []

    def compute(self, part: int, over: threading.Event) -> Any:
        assert not over.is_set()
        self.parts.append(part)
        if part == 2:
            raise KeyError("broken")
        return {"values": np.arange(2 * part, 2 * part + 2) ** 2}


def test_each_part_is_computed_once_and_none_after_the_end(tmp_path: Path) -> None:
    work = Squares()
    parts = PartsFolder(tmp_path / "x.parts", "squares", 3)
    parts.make()
    task = PartTask(parts.path, work)
    for part in (1, 0, 1):
        assert 0 <= task(part) < HANG
    assert work.parts == [1, 0]
    assert [parts.has(part) for part in range(3)] == [True, True, False]
    assert parts.take(1)["values"].tolist() == [4, 9]
    with pytest.raises(KeyError) as caught:
        task(2)
    assert caught.value.__notes__ == ["loadax: in part 2"]
    assert sorted(each.name for each in parts.path.iterdir()) == ["0.npz", "1.npz"]
    parts.delete()
    assert not parts.exists()
    task(0)  # a second copy
    assert work.parts == [1, 0, 2]
    assert list(tmp_path.iterdir()) == []
