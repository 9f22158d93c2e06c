"""A command of the command line, as its users meet it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from loadax.cli import main


class Outcome(NamedTuple):
    """What a command wrote and how it ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command with these arguments in this process."""

    def run(*arguments: Any) -> Outcome:
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Outcome(code, *capfd.readouterr())

    return run
