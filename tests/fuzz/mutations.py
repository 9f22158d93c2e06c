"""Mutations of files: bytes, numbers that stand in text, and values of JSON."""

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

_EDGES = [0, 1, 2, 7, 8, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1]
_NUMBERS = [*map(str, _EDGES), "-1", "-512", str(2**63), str(2**64), "9" * 40, "9" * 5000, "1e999", "0.5", "NaN", "00"]
_VALUES: list[Any] = [None, True, False, 0, -1, 1, 2**31, 2**62, 2**63, 10**40, 0.5, 1e308, float("nan"), "", "x", "0"]
_VALUES += ["a" * 3000, "../../x", "\0", "\ud800", [], {}, [[]], [1], {"a": 1}, ["x", None], [2**40, 2**40]]
_NUMBER = re.compile(rb"\d+")
_NESTED = 3000  # levels: more than Python's recursion takes

Mutate = Callable[[bytes, Random], bytes]


def mutate_bytes(content: bytes, random: Random) -> bytes:
    """One to three random changes of bytes."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        content = random.choice(_CHANGES)(content, random)
    return content


def mutate_json(content: bytes, random: Random) -> bytes:
    """Replaces, drops or adds a value somewhere in JSON; now and then changes bytes instead."""
    try:
        value = json.loads(content)
    except ValueError:
        return mutate_bytes(content, random)
    if random.random() < 0.2:
        return mutate_bytes(content, random)
    if random.random() < 0.03:
        mark = '"nest here"'
        text = json.dumps(change_value(value, random, "nest here"))
        return text.replace(mark, "[" * _NESTED + "]" * _NESTED).encode()
    for _ in range(random.choice((1, 1, 2))):
        value = change_value(value, random)
    return json.dumps(value).encode()


def change_value(value: Any, random: Random, new: Any = None) -> Any:  # noqa: PLR0911 - one a kind
    """A copy of a tree of JSON with one change."""
    if isinstance(value, dict) and value and random.random() < 0.93:
        key = random.choice(list(value))
        chance = random.random()
        if chance < 0.06:
            return {name: item for name, item in value.items() if name != key}
        if chance < 0.1:
            return {**value, random.choice(("x", "", "name", key + "2")): new or random.choice(_VALUES)}
        return {**value, key: change_value(value[key], random, new)}
    if isinstance(value, list) and value and random.random() < 0.9:
        index = random.randrange(len(value))
        chance = random.random()
        if chance < 0.08:
            return value[:index] + value[index + 1 :]
        if chance < 0.16:
            return [*value, random.choice(value)]
        return [*value[:index], change_value(value[index], random, new), *value[index + 1 :]]
    if new is not None:
        return new
    if isinstance(value, int) and random.random() < 0.6:
        return random.choice([value + 1, value - 1, -value, value * 2, *_EDGES, -(2**63), 2**64])
    return random.choice(_VALUES)


def _flip(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 8)) if content else 0):
        changed[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _overwrite(content: bytes, random: Random) -> bytes:
    """An integer of 1, 2, 4 or 8 bytes becomes one at the edge of what it can hold."""
    width = random.choice((1, 2, 4, 8))
    if len(content) < width:
        return content
    at = random.randrange(len(content) - width + 1)
    value = random.choice([*_EDGES, -1, -2, -(2**31), -(2**62)]) % 2 ** (8 * width)
    return content[:at] + value.to_bytes(width, random.choice(("little", "big"))) + content[at + width :]


def _number(content: bytes, random: Random) -> bytes:
    found = list(_NUMBER.finditer(content))
    if not found:
        return _flip(content, random)
    match = random.choice(found)
    number = random.choice(_NUMBERS).encode()
    if random.random() < 0.5:  # of the same length, as fields of tar have it
        number = number[: len(match[0])].rjust(len(match[0]), b"0")
    return content[: match.start()] + number + content[match.end() :]


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _extend(content: bytes, random: Random) -> bytes:
    return content + random.choice((b"\0", b"\xff", b"{", b"\n", content[:64])) * random.choice((1, 3, 512, 5000))


def _cut(content: bytes, random: Random) -> bytes:
    low, high = sorted(random.randrange(len(content) + 1) for _ in range(2))
    return content[:low] + content[min(high, low + random.choice((1, 8, 512))) :]


def _splice(content: bytes, random: Random) -> bytes:
    """A part of the file stands at another place of it too."""
    low, high = sorted(random.randrange(len(content) + 1) for _ in range(2))
    at = random.randrange(len(content) + 1)
    part = content[low:high]
    return content[:at] + part + content[at + random.choice((0, len(part))) :]


_CHANGES: list[Mutate] = [_flip, _flip, _overwrite, _overwrite, _number, _number, _truncate, _extend, _cut, _splice]
