"""Functions are told apart by whatever decides what they do, as far as it can be seen.

Else it is said that they can't be.
"""

import functools
import json
import logging
import math
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax.core.fingerprint import fingerprint

ROOT = Path(__file__).parents[2]


def made(text: str, name: str = "fn", module: str = "mine", **names: Any) -> Any:
    """The function of that name in a module of this text."""
    built = types.ModuleType(module)
    built.__dict__.update(names)
    exec(text, built.__dict__)
    return built.__dict__[name]


CHANGES: dict[str, tuple[str, str]] = {
    "a global": ("Y = 1\ndef fn(x): return x > Y", "Y = 2\ndef fn(x): return x > Y"),
    "a global in a function inside": (
        "Y = 1\ndef fn(x): return any(z > Y for z in x)",
        "Y = 2\ndef fn(x): return any(z > Y for z in x)",
    ),
    "an array": (
        "import numpy as np\nY = np.arange(4)\ndef fn(x): return x in Y",
        "import numpy as np\nY = np.arange(5)\ndef fn(x): return x in Y",
    ),
    "a function that is called": (
        "def help(x): return x > 1\ndef fn(x): return help(x)",
        "def help(x): return x > 2\ndef fn(x): return help(x)",
    ),
    "the function in a partial": (
        "import functools\ndef help(x, y): return x > y\nfn = functools.partial(help, 1)",
        "import functools\ndef help(x, y): return x < y\nfn = functools.partial(help, 1)",
    ),
    "a method of a class": (
        "class K:\n  def good(self, x): return x > 1\ndef fn(x): return K().good(x)",
        "class K:\n  def good(self, x): return x > 2\ndef fn(x): return K().good(x)",
    ),
    "a class attribute": (
        "class K:\n  LIMIT = 1\n  @classmethod\n  def good(cls, x): return x > cls.LIMIT\nfn = K.good",
        "class K:\n  LIMIT = 2\n  @classmethod\n  def good(cls, x): return x > cls.LIMIT\nfn = K.good",
    ),
    "an enum": (
        "import enum\nclass K(enum.Enum):\n  LIMIT = 1\ndef fn(x): return x > K.LIMIT.value",
        "import enum\nclass K(enum.Enum):\n  LIMIT = 2\ndef fn(x): return x > K.LIMIT.value",
    ),
    **{
        f"a dataclass: {what}": (
            f"from dataclasses import dataclass\n{before}\ndef fn(x): return k(x)",
            f"from dataclasses import dataclass\n{after}\ndef fn(x): return k(x)",
        )
        for what, before, after in (
            (
                "an inherited method",
                "class B:\n  def good(self, x): return x > 1\n@dataclass\nclass K(B):\n  a: int\nk = K(1)",
                "class B:\n  def good(self, x): return x > 2\n@dataclass\nclass K(B):\n  a: int\nk = K(1)",
            ),
            (
                "a static method",
                "@dataclass\nclass K:\n  a: int\n  @staticmethod\n  def good(x): return x > 1\nk = K(1)",
                "@dataclass\nclass K:\n  a: int\n  @staticmethod\n  def good(x): return x > 2\nk = K(1)",
            ),
            (
                "a property",
                "@dataclass\nclass K:\n  a: int\n  @property\n  def b(self): return 1\nk = K(1)",
                "@dataclass\nclass K:\n  a: int\n  @property\n  def b(self): return 2\nk = K(1)",
            ),
            (
                "an attribute of an instance",
                "@dataclass\nclass K:\n  a: int\nk = K(1)\nk.b = 1",
                "@dataclass\nclass K:\n  a: int\nk = K(1)\nk.b = 2",
            ),
        )
    },
    "which builtin": ("def fn(x): return any(x)", "def fn(x): return all(x)"),
    "a pattern": (
        "import re\nY = re.compile('a')\ndef fn(x): return Y.match(x)",
        "import re\nY = re.compile('b')\ndef fn(x): return Y.match(x)",
    ),
    "a bound method": ("fn = {1, 2}.__contains__", "fn = {1, 3}.__contains__"),
    "a class": (
        "import numpy as np\ndef fn(x): return np.float32(x) > 0\nY = 1",
        "def fn(x): return float(x) > 0\nY = 1",
    ),
}


@pytest.mark.parametrize(("one", "other"), CHANGES.values(), ids=CHANGES.keys())
def test_what_changes_it(one: str, other: str) -> None:
    assert fingerprint(made(one)) == fingerprint(made(one)) == fingerprint(made("\n\n# moved\n" + one))
    assert fingerprint(made(one)) != fingerprint(made(other))


def test_the_name_of_its_module_does_not_matter() -> None:
    """A script's own functions belong to `__main__` when it runs, and to another module on the command line."""
    text = "def help(x): return x > 1\ndef fn(x): return help(x)"
    assert fingerprint(made(text, module="__main__")) == fingerprint(made(text, module="script"))


def test_functions_of_other_packages_count_by_name() -> None:
    text = "def fn(x): return isclose(x, 1)"
    assert fingerprint(made(text, isclose=math.isclose)) == fingerprint(made(text, isclose=math.isclose))
    assert fingerprint(made(text, isclose=np.isclose)) != fingerprint(made(text, isclose=math.isclose))


def test_functions_may_call_themselves_and_each_other() -> None:
    text = "def help(x): return fn(x - {})\ndef fn(x): return x > 0 and help(x)"
    assert fingerprint(made(text.format(1))) == fingerprint(made(text.format(1))) != fingerprint(made(text.format(2)))
    inside = "def build():\n  def fn(x): return x > 0 and fn(x - 1)\n  return fn\nfn = build()"
    assert fingerprint(made(inside)) == fingerprint(made(inside))


@pytest.mark.processes
def test_it_is_the_same_in_every_process() -> None:
    """Also where sets of texts stand in another order."""
    script = (
        "import json\nfrom loadax.core.fingerprint import fingerprint\nfrom tests.row_index.filters import small, "
        "user\n"
        "NAMES = frozenset('abcdefgh')\ndef fn(x): return x in NAMES or x in {'p', 'q', 'r', 's'} or small(x)\n"
        "print(json.dumps([fingerprint(each).digest for each in (small, user, fn)]))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        for seed in ("1", "2")
    ]
    one, two = (json.loads(run.stdout) for run in runs)
    assert one == two
    assert len(set(one)) == 3


class Thing:
    def __call__(self, x: Any) -> bool:
        return True

    def method(self, x: Any) -> bool:
        return True


@pytest.mark.parametrize(
    "build",
    [
        Thing,
        lambda: Thing().method,
        lambda: made("def fn(x): return thing(x)", thing=Thing()),
        lambda: made("def fn(x, y=[thing]): return x", thing=Thing()),
        lambda: functools.partial(made("def fn(y, x): return x"), Thing()),
        lambda: made("def fn(x): return x in Y", Y=np.array([Thing()])),
    ],
    ids=["an object", "its method", "a global", "a default", "a partial", "an array of objects"],
)
def test_what_does_not_show_is_named(build: Callable[[], Any]) -> None:
    unknown = fingerprint(build()).unknown
    assert unknown is not None
    assert re.fullmatch(r".*, of type (Thing|ndarray)", unknown)


def test_what_is_wrapped_is_looked_into() -> None:
    text = "import functools\n@functools.lru_cache\ndef help(x): return x > {}\ndef fn(x): return help(x)"
    assert fingerprint(made(text.format(1))) == fingerprint(made(text.format(1))) != fingerprint(made(text.format(2)))


def test_loggers_and_modules_count_by_name() -> None:
    text = "def fn(x): log.info(re.escape(x)); return True"
    names: dict[str, Any] = {"log": logging.getLogger("a"), "re": re}
    assert fingerprint(made(text, **names)) != fingerprint(made(text, **names | {"log": logging.getLogger("b")}))
    assert fingerprint(made(text, **names)) != fingerprint(made(text, **names | {"re": math}))


def test_a_name_that_is_not_there_yet() -> None:
    assert fingerprint(made("def fn(x): return later(x)")) != fingerprint(made("def fn(x): return sooner(x)"))
    empty = "def build():\n  def fn(x): return y\n  return fn\n  y = 1\nfn = build()"
    assert fingerprint(made(empty)) == fingerprint(made(empty))


def scaled(factor: Any) -> Callable[[Any], Any]:
    def scale(row: Any) -> Any:
        return row * factor

    return scale


def applied(inner: Any) -> Callable[[Any], Any]:
    return lambda row: inner(row) + 1


class Scaling:
    def by_two(self, row: Any) -> Any:
        return row * 2

    def by_three(self, row: Any) -> Any:
        return row * 3

    def __call__(self, row: Any) -> Any:
        return row


@pytest.mark.parametrize(
    "make",
    [
        *(
            lambda: scaled(2),
            lambda: scaled("two"),
            lambda: scaled(None),
            lambda: scaled((1, [2.5, b"x"], {"k": {3}})),
        ),
        *(lambda: scaled(np.arange(3)), lambda: scaled(np.float32(2)), lambda: applied(scaled(2))),
        *(
            lambda: functools.partial(scaled, factor=2),
            lambda: Scaling().by_two,
            Scaling,
            lambda: len,
            lambda: np.sqrt,
        ),
    ],
)
def test_of_the_same_function_made_twice(make: Callable[[], Any]) -> None:
    assert fingerprint(make()).digest == fingerprint(make()).digest
    assert re.fullmatch("[0-9a-f]{16}[+][0-9a-f]{16}", fingerprint(make()).digest)


def test_of_different_functions() -> None:
    """Other code, constants, names, defaults, or anything that is closed over."""
    functions: list[Callable[..., Any]] = [
        *(lambda row: row, lambda row: row + 1, lambda row: row + 2, lambda row: row - 1, lambda row: row + 1.0),
        *(lambda row: row.real, lambda row: row.imag, lambda row: [each + 1 for each in row]),
        *(lambda row: [each + 2 for each in row], lambda row: row in {1, 2}, lambda row: row in {1, 3}),
        *(
            lambda row, k=1: row * k,
            lambda row, k=2: row * k,
            lambda row, *, k=1: row * k,
            lambda row, *, k=2: row * k,
        ),
        *(
            scaled(factor)
            for factor in (1, 2, True, 1.0, "1", b"1", None, (1,), [1], {1}, {1: 1}, {1: 2}, (1, 2), (2, 1))
        ),
        *(scaled(np.array(each)) for each in ([1], [2], [[1]], [1.0])),
        *(applied(scaled(1)), applied(scaled(2)), applied(len)),
        *(functools.partial(scaled, 1), functools.partial(scaled, 2), functools.partial(scaled, factor=1)),
        *(Scaling().by_two, Scaling().by_three, Scaling(), len, max),
    ]
    assert len({fingerprint(each).digest for each in functions}) == len(functions)


def test_of_what_can_not_be_told_apart() -> None:
    """Objects count as their type, so that one that changes as it works is no other one."""
    alike = [fingerprint(scaled(value)).digest for value in (Scaling(), Scaling(), object())]
    assert alike[0] == alike[1] != alike[2]
    assert fingerprint(scaled(np.array([Scaling()]))).digest == fingerprint(scaled(np.array([None]))).digest


def test_a_module_of_the_package_counts_by_what_is_named_of_it() -> None:
    def of(limit: int, other: int) -> str:
        inner = types.ModuleType("mine.inner")
        exec(f"LIMIT = {limit}\nOTHER = {other}\ndef good(x): return x > LIMIT", inner.__dict__)
        return fingerprint(made("def fn(x): return inner.good(x)", module="mine.outer", inner=inner)).digest

    assert of(1, 1) == of(1, 2)
    assert of(1, 1) != of(2, 1)


def test_methods_of_builtin_classes() -> None:
    assert fingerprint(str.isdigit).digest != fingerprint(str.isalpha).digest
    assert fingerprint(np.ndarray.copy).unknown is None


def test_helpers_that_share_helpers_are_followed_once() -> None:
    layers = ["def f0(x): return x"] + [f"def f{i}(x): return f{i - 1}(x) + f{i - 1}(-x)" for i in range(1, 60)]
    layers += [f"def g{i}(x): return f{i}(x) + f{i - 1}(x) + g{i - 1}(x)" for i in range(1, 60)]
    assert fingerprint(made("def g0(x): return x\n" + "\n".join(layers), "g59")).unknown is None
