"""The version, and completion."""

import sys
from typing import Any

import pytest

import loadax
from loadax.cli import main


def test_version(capsys: Any) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"loadax {loadax.__version__}\n"


def test_completion(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", "bash"])
    script = capsys.readouterr().out
    assert all(word in script for word in ("inspect", "doctor", "--seq-len"))
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit, match="2"):
        main(["--print-completion", "bash"])
    assert "--print-completion: it needs shtab, which is not installed; pip install shtab" in capsys.readouterr().err
