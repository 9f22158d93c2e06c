"""An entry of an index folder is given back for what it was made from, and its arrays are within their limits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.kept.index_folder import Entry, IndexFolder, cached, check_array, check_digest

VALUES = np.array([3, 5, 8])


@pytest.mark.parametrize(
    ("array", "length", "low", "high", "message"),
    [
        (VALUES, 3, 3, 8, None),
        (VALUES, None, None, None, None),
        (VALUES[:0], 0, 9, 0, None),
        (VALUES, 3, 4, 8, "a has values from 3 to 8, not from 4 to 8"),
        (VALUES, 3, 3, 7, "not from 3 to 7"),
        (VALUES, 2, 3, 8, "a has 3 values, not 2"),
        (VALUES[None], 1, 3, 8, r"a is int64\[1, 3\], not a flat array of int64"),
        (VALUES.astype(np.int32), 3, 3, 8, r"a is int32\[3\], not a flat array of int64"),
    ],
)
def test_limits_are_inclusive(array: Any, length: Any, low: Any, high: Any, message: str | None) -> None:
    entry = Entry({"a": array}, {"digest": ""})
    if message is None:
        assert check_array(entry, "a", np.int64, length, low, high) is array
        with pytest.raises(ValueError, match="the digest is not that of a"):
            check_digest(entry, "a", np.int64, length, low, high)
    else:
        with pytest.raises(ValueError, match=message):
            check_array(entry, "a", np.int64, length, low, high)


def test_an_entry_is_made_once_for_each_identity(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And what an entry before it had is deleted, but nothing else is."""
    folder, made = IndexFolder(tmp_path / "new" / "index"), list[int]()

    def asked(rows: int, name: str = "e") -> Any:
        def make() -> Entry:
            made.append(rows)
            return Entry({"a": np.arange(rows), "b": VALUES}, {"n": rows})

        entry = cached(folder, name, lambda: {"rows": rows, "kind": "x"}, lambda entry: None, make)
        return entry.arrays["a"].tolist(), entry.arrays["b"].tolist(), entry.facts

    for rows in (4, 4, 5, 5):
        assert asked(rows) == ([*range(rows)], [3, 5, 8], {"n": rows})
    assert asked(4, "e-a")[2] == {"n": 4}
    assert made == [4, 5, 4]
    assert sum("does not match (rows differs)" in each for each in caplog.messages) == 1
    assert len([*(tmp_path / "new" / "index").iterdir()]) == 6  # two arrays and a description of each entry
    assert asked(5)[2] == {"n": 5}
    assert made == [4, 5, 4]


def test_large_arrays_are_mapped_and_outlive_their_files(tmp_path: Path) -> None:
    """Another entry of the name deletes their files; smaller arrays are in memory, safe from truncation."""
    folder = IndexFolder(tmp_path)
    large = np.arange(3 << 20)
    folder.put("e", {}, Entry({"large": large, "small": VALUES}, {}))
    entry = folder.get("e", {}, lambda entry: None)
    assert entry is not None
    maps = Path("/proc/self/maps").read_text()
    assert [path.name in maps for path in sorted(tmp_path.glob("e-*.npy"))] == [True, False]
    folder.put("e", {}, Entry({"large": large[::-1], "small": VALUES}, {}))
    assert (entry.arrays["large"] == large).all()
    assert not entry.arrays["large"].flags.writeable
