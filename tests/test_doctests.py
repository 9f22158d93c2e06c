"""Every example in a docstring of the package does what it says, pasted into an empty session."""

import doctest
import importlib
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# not installed here; see tests/interop/trainers, and tests/interop/test_torch.py
TRAINERS = {"kauldron", "levanter", "ray", "torch", "tunix"}
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "loadax").rglob("*.py") if path.stem not in TRAINERS)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_doctests(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # In an empty namespace, so that an example can be pasted: it imports what it uses.
        failed, _ = doctest.testmod(importlib.import_module(name), globs={}, optionflags=doctest.ELLIPSIS)
    assert failed == 0
