"""Tables of the command line, the version, and completion."""

import io
import sys
from typing import Any

import pytest

import loadax
from loadax.cli import main
from loadax.cli.terminal import table_text
from loadax.core.formatting import table

HEADER, ROWS = ("", "check"), [("ok", "[red]devices[/red]"), ("change", "memory")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_tables_have_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table_text(HEADER, ROWS) == table(HEADER, ROWS)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    drawn = table_text(HEADER, ROWS)
    assert "\x1b[32mok" in drawn
    assert "[red]devices[/red]" in drawn  # markup of the data is text
    monkeypatch.setenv("NO_COLOR", "1")
    assert table_text(HEADER, ROWS) == table(HEADER, ROWS)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert table_text(HEADER, ROWS) == table(HEADER, ROWS)


def test_the_version(capsys: Any) -> None:
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
    assert "--print-completion needs shtab, which is not installed; pip install shtab" in capsys.readouterr().err
