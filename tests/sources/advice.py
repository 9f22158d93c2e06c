"""Following the advice of an error to the letter: the lines of loadax in it are run as they stand."""

import re
from typing import Any

import loadax


def lines(message: str) -> list[str]:
    """Every call of loadax in a message, with all that is chained to it."""
    found, end = [], 0
    for match in re.finditer(r"loadax\.\w+(?=\()", message):
        if match.start() < end:
            continue
        end = _closing(message, match.end())
        while chained := re.match(r"\.\w+(?=\()", message[end:]):
            end = _closing(message, end + chained.end())
        found.append(message[match.start() : end])
    return found


def follow(error: BaseException, **names: Any) -> list[Any]:
    """What each line gives, where `names` mean something, as `data` does."""
    return [eval(line, {"loadax": loadax, **names}) for line in lines(str(error))]


def _closing(text: str, start: int) -> int:
    depth = 0
    for number, letter in enumerate(text[start:], start):
        depth += (letter in "([{") - (letter in ")]}")
        if not depth:
            return number + 1
    raise AssertionError(text)
