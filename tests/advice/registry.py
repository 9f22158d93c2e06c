"""Functions that follow the advice of an error to the letter, by the advice."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Follow = Callable[["Case"], Any]

# Every function, by its name, with the advice that it follows.
FOLLOWED: dict[str, tuple[str, Follow]] = {}


@dataclass(frozen=True)
class Case:
    """What a function that follows advice is given.

    Args:
        advice: The advice; `…` stands for a value.
        folder: An empty folder.
        patch: Replaces modules and attributes until the function has ended.
    """

    advice: str
    folder: Path
    patch: pytest.MonkeyPatch

    @contextmanager
    def refused(self, kind: type[Exception] = Exception) -> Iterator[None]:
        """Checks that the code within fails, with the advice in the message."""
        with pytest.raises(kind) as caught:
            yield
        message = " ".join(str(caught.value).split())
        assert re.search(pattern(self.advice), message, re.DOTALL), message


def pattern(advice: str) -> str:
    """Regular expression of a text in which `…` stands for a value."""
    return ".*?".join(re.escape(part) for part in advice.split("…"))


def follows(advice: str) -> Callable[[Follow], Follow]:
    """Registers a function that makes an error with this advice, within `Case.refused`, and then follows it."""

    def register(function: Follow) -> Follow:
        assert function.__name__ not in FOLLOWED, f"{function.__name__} is registered twice"
        FOLLOWED[function.__name__] = advice, function
        return function

    return register
