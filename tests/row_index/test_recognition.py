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

from loadax.row_index.fingerprint import UnrecognisedError, recognise

ROOT = Path(__file__).parents[2]


def made(text: str, name: str = "fn", module: str = "mine", **names: Any) -> Any:
    """The function of that name in a module of this text."""
    built = types.ModuleType(module)
    built.__dict__.update(names)
    exec(text, built.__dict__)
    return built.__dict__[name]


CHANGES: dict[str, tuple[str, str]] = {
    "code": ("def fn(x): return x > 1", "def fn(x): return x < 1"),
    "a constant": ("def fn(x): return x > 1", "def fn(x): return x > 2"),
    "1 and True": ("def fn(x): return x == 1", "def fn(x): return x == True"),
    "a default": ("def fn(x, y=1): return x > y", "def fn(x, y=2): return x > y"),
    "a keyword's default": ("def fn(x, *, y=1): return x > y", "def fn(x, *, y=2): return x > y"),
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
    "which builtin": ("def fn(x): return any(x)", "def fn(x): return all(x)"),
    "what it closes over": (
        "def build(y):\n  def fn(x): return x > y\n  return fn\nfn = build(1)",
        "def build(y):\n  def fn(x): return x > y\n  return fn\nfn = build(2)",
    ),
    "a set": ("Y = {'a', 'b'}\ndef fn(x): return x in Y", "Y = {'a', 'c'}\ndef fn(x): return x in Y"),
    "a dict": ("Y = {'a': 1}\ndef fn(x): return Y[x]", "Y = {'a': 2}\ndef fn(x): return Y[x]"),
    "a list": ("Y = [1, 2]\ndef fn(x): return x in Y", "Y = [2, 1]\ndef fn(x): return x in Y"),
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
    assert recognise(made(one)) == recognise(made(one)) == recognise(made("\n\n# moved\n" + one))
    assert recognise(made(one)) != recognise(made(other))


def test_a_partial_is_its_function_and_what_is_filled_in() -> None:
    fn = made("def fn(y, x): return x > y")
    texts = [recognise(functools.partial(fn, y)) for y in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert recognise(functools.partial(fn, y=1)) != texts[0]


def test_the_name_of_its_module_does_not_matter() -> None:
    """A script's own functions belong to `__main__` when it runs, and to another module on the command line."""
    text = "def help(x): return x > 1\ndef fn(x): return help(x)"
    assert recognise(made(text, module="__main__")) == recognise(made(text, module="script"))


def test_functions_of_other_packages_count_by_name() -> None:
    text = "def fn(x): return isclose(x, 1)"
    assert recognise(made(text, isclose=math.isclose)) == recognise(made(text, isclose=math.isclose))
    assert recognise(made(text, isclose=np.isclose)) != recognise(made(text, isclose=math.isclose))


def test_functions_may_call_themselves_and_each_other() -> None:
    text = "def help(x): return fn(x - {})\ndef fn(x): return x > 0 and help(x)"
    assert recognise(made(text.format(1))) == recognise(made(text.format(1))) != recognise(made(text.format(2)))
    inside = "def build():\n  def fn(x): return x > 0 and fn(x - 1)\n  return fn\nfn = build()"
    assert recognise(made(inside)) == recognise(made(inside))


def test_it_is_the_same_in_every_process() -> None:
    """Also where sets of texts stand in another order."""
    script = (
        "import json\nfrom loadax.row_index.fingerprint import recognise\nfrom tests.row_index.filters import small, "
        "user\n"
        "NAMES = frozenset('abcdefgh')\ndef fn(x): return x in NAMES or x in {'p', 'q', 'r', 's'} or small(x)\n"
        "print(json.dumps([recognise(each) for each in (small, user, fn)]))"
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
def test_what_can_not_be_recognised(build: Callable[[], Any]) -> None:
    with pytest.raises(UnrecognisedError, match=r"it depends on .*, of type (Thing|ndarray)"):
        recognise(build())


def test_what_is_wrapped_is_looked_into() -> None:
    text = "import functools\n@functools.lru_cache\ndef help(x): return x > {}\ndef fn(x): return help(x)"
    assert recognise(made(text.format(1))) == recognise(made(text.format(1))) != recognise(made(text.format(2)))


def test_loggers_and_modules_count_by_name() -> None:
    text = "def fn(x): log.info(re.escape(x)); return True"
    names: dict[str, Any] = {"log": logging.getLogger("a"), "re": re}
    assert recognise(made(text, **names)) != recognise(made(text, **names | {"log": logging.getLogger("b")}))
    assert recognise(made(text, **names)) != recognise(made(text, **names | {"re": math}))


def test_a_name_that_is_not_there_yet() -> None:
    assert recognise(made("def fn(x): return later(x)")) != recognise(made("def fn(x): return sooner(x)"))
    empty = "def build():\n  def fn(x): return y\n  return fn\n  y = 1\nfn = build()"
    assert recognise(made(empty)) == recognise(made(empty))
