"""A change in any module of the user's that a function reaches changes its fingerprint."""

import dis
import functools
import importlib.metadata
import json
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadax.core import fingerprint as module
from loadax.core.fingerprint import fingerprint
from loadax.core.former import former
from loadax.core.user_code import is_own, names_in
from tests.core.user_modules import imported

ONE, TWO = "return x + 1", "return x + 2"
HELPER = "def change(x): {}"


def through(script: str, helper: str = HELPER, one: str = ONE, two: str = TWO) -> tuple[dict[str, str], ...]:
    """A script, and its module `fp_helpers` before and after a change."""
    return tuple({"fp_script": script, "fp_helpers": helper.replace("{}", text)} for text in (one, two))


def alone(script: str, one: str = ONE, two: str = TWO) -> tuple[dict[str, str], ...]:
    """A script before and after a change."""
    return tuple({"fp_script": script.replace("{}", text)} for text in (one, two))


DISPATCH = """
import functools, numbers
@functools.singledispatch
def change(x): return x
@change.register
def _(x: numbers.Number): {}
"""
KINDS: dict[str, tuple[dict[str, str], ...]] = {
    "a function of a helper module": through("from fp_helpers import change\ndef fn(x): return change(x)"),
    "the helper's own helper": (
        *(
            {
                "fp_script": "import fp_a\ndef fn(x): return fp_a.go(x)",
                "fp_a": "from fp_b import change\ndef go(x): return change(x)",
                "fp_b": f"def change(x): {text}",
            }
            for text in (ONE, TWO)
        ),
    ),
    "a member of a module": through("import fp_helpers\ndef fn(x): return fp_helpers.change(x)"),
    "a module in a package": (
        *(
            {
                "fp_script": "import fp_pkg.inner\ndef fn(x): return fp_pkg.inner.change(x)",
                "fp_pkg/__init__": "",
                "fp_pkg/inner": f"def change(x): {text}",
            }
            for text in (ONE, TWO)
        ),
    ),
    "a lazy member of a package": (
        *(
            {
                "fp_script": "import fp_pkg\ndef fn(x): return fp_pkg.change(x)",
                "fp_pkg/__init__": "import importlib\ndef __getattr__(name):\n"
                "  if name != 'change': raise AttributeError(name)\n"
                "  return importlib.import_module('fp_pkg.inner').change",
                "fp_pkg/inner": f"def change(x): {text}",
            }
            for text in (ONE, TWO)
        ),
    ),
    "a global of a module": through(
        "import fp_helpers\ndef fn(x): return x + fp_helpers.LIMIT", "LIMIT = {}", "1", "2"
    ),
    "a registry of a module": through(
        "from fp_helpers import KNOWN\ndef fn(x): return KNOWN['change'](x)",
        "def change(x): {}\nKNOWN = {'change': change}",
    ),
    "an import in the function": through("def fn(x):\n  import fp_helpers\n  return fp_helpers.change(x)"),
    "an import of a name in the function": through(
        "def fn(x):\n  from fp_helpers import change as other\n  return other(x)"
    ),
    "an import in a nested function": through(
        "def fn(x):\n  def go():\n    import fp_helpers as h\n    return h.change(x)\n  return go()"
    ),
    "a relative import in a function": (
        *(
            {
                "fp_script": "from fp_pkg.outer import fn",
                "fp_pkg/__init__": "",
                "fp_pkg/outer": "def fn(x):\n  from . import inner\n  from .other import add\n"
                "  return inner.change(add(x))",
                "fp_pkg/inner": f"def change(x): {text}",
                "fp_pkg/other": "def add(x): return x",
            }
            for text in (ONE, TWO)
        ),
    ),
    "globals()": alone("def change(x): {}\ndef fn(x): return globals()['change'](x)"),
    "globals() by a global": alone("def change(x): {}\nNAME = 'change'\ndef fn(x): return globals()[NAME](x)"),
    "getattr of a module": through("import fp_helpers\ndef fn(x): return getattr(fp_helpers, 'change')(x)"),
    "sys.modules": through("import sys, fp_helpers as _\ndef fn(x): return sys.modules['fp_helpers'].change(x)"),
    "import_module": through("import importlib\ndef fn(x): return importlib.import_module('fp_helpers').change(x)"),
    "a method's helper": through(
        "from fp_helpers import K\ndef fn(x): return K().go(x)",
        "def change(x): {}\nclass K:\n  def go(self, x): return change(x)",
    ),
    "a base class": through(
        "from fp_helpers import Base\nclass K(Base): pass\ndef fn(x): return K().change(x)",
        "class Base:\n  def change(self, x): {}",
    ),
    "a metaclass": through(
        "from fp_helpers import Meta\nclass K(metaclass=Meta): pass\ndef fn(x): return K.change(x)",
        "class Meta(type):\n  def change(cls, x): {}",
    ),
    "a module in a class": through(
        "import fp_helpers\nclass K:\n  h = fp_helpers\n  def go(self, x): return self.h.change(x)\n"
        "def fn(x): return K().go(x)"
    ),
    "a dataclass of a module": through(
        "from fp_helpers import K\nk = K(3)\ndef fn(x): return k.change(x)",
        "from dataclasses import dataclass, field\n@dataclass\nclass K:\n  a: int\n"
        "  b: list = field(default_factory=list)\n  def change(self, x): {}",
    ),
    "a method of an enum": through(
        "from fp_helpers import K\ndef fn(x): return K.A.change(x)",
        "import enum\nclass K(enum.Enum):\n  A = 1\n  def change(self, x): {}",
    ),
    "a named tuple's method": through(
        "from fp_helpers import K\nk = K(1)\ndef fn(x): return k.change(x)",
        "from typing import NamedTuple\nclass K(NamedTuple):\n  a: int\n  def change(self, x): {}",
    ),
    "what a decorator wraps": through(
        "from fp_helpers import change\ndef fn(x): return change(x)",
        "import functools\ndef twice(f):\n  @functools.wraps(f)\n  def go(*a): return f(*a)\n  return go\n"
        "@twice\ndef change(x): {}",
    ),
    "a decorator": through(
        "from fp_helpers import deco\n@deco\ndef fn(x): return x",
        "def deco(f):\n  def go(x): {}\n  return go",
    ),
    "a cached function": through(
        "from fp_helpers import change\ndef fn(x): return change(x)",
        "import functools\n@functools.cache\ndef change(x): {}",
    ),
    "a partial": through("import functools\nfrom fp_helpers import change\nfn = functools.partial(change)"),
    "a partial of a module": through(
        "import functools, fp_helpers\ndef go(h, x): return h.change(x)\nfn = functools.partial(go, fp_helpers)"
    ),
    "a partial method": through(
        "from fp_helpers import K\ndef fn(x): return K().go(x)",
        "import functools\nclass K:\n  def change(self, x): {}\n  go = functools.partialmethod(change)",
    ),
    "a default argument": through("from fp_helpers import change\ndef fn(x, f=change): return f(x)"),
    "a keyword's default": through("from fp_helpers import change\ndef fn(x, *, f=change): return f(x)"),
    "a closure": through(
        "import fp_helpers\ndef build(h):\n  def fn(x): return h.change(x)\n  return fn\nfn = build(fp_helpers)"
    ),
    "a module in a list": through("import fp_helpers\nALL = [fp_helpers]\ndef fn(x): return ALL[0].change(x)"),
    "an attribute of the function": alone("def fn(x): return x + fn.k\nfn.k = {}", "1", "2"),
    "an attribute of another function": through(
        "from fp_helpers import f\ndef fn(x): return x + f.k", "def f(): pass\nf.k = {}", "1", "2"
    ),
    "singledispatch": through("from fp_helpers import change\ndef fn(x): return change(x)", DISPATCH),
    "singledispatch itself": tuple(
        {"fp_script": DISPATCH.replace("{}", text) + "fn = change\n"} for text in (ONE, TWO)
    ),
    "a singledispatch method": through(
        "from fp_helpers import K\ndef fn(x): return K().change(x)",
        "import functools\nclass K:\n  @functools.singledispatchmethod\n  def change(self, x): return x\n"
        "  @change.register\n  def _(self, x: int): {}",
    ),
    **{
        f"an attribute of a subclass of {kind}": alone(
            f"import numpy as np\nclass K({kind}): pass\nk = {make}\nk.a = {{}}\ndef fn(x): return x + k.a", "1", "2"
        )
        for kind, make in {
            **dict.fromkeys(("int", "float", "str", "dict", "list", "tuple", "set", "bytes"), "K()"),
            "np.ndarray": "np.arange(3).view(K)",
        }.items()
    },
    "a method of a subclass of dict": alone(
        "class K(dict):\n  def change(self, x): {}\nk = K()\ndef fn(x): return k.change(x)"
    ),
    "a slot of a subclass of dict": alone(
        "class K(dict):\n  __slots__ = ('a',)\nk = K()\nk.a = {}\ndef fn(x): return x + k.a", "1", "2"
    ),
    "the mask of an array": alone(
        "import numpy as np\nY = np.ma.array([1, 2], mask={})\ndef fn(x): return x + int(Y.sum())",
        "[False, True]",
        "[True, False]",
    ),
    "the default of a defaultdict": alone(
        "import collections\ndef change():\n  x = 0\n  {}\nD = collections.defaultdict(change)\n"
        "def fn(x): return x + D.default_factory()"
    ),
    "names of a structured dtype": alone(
        "import numpy as np\nY = np.array([(1, 2)], [{}])\ndef fn(x): return x + int(Y['a'][0])",
        "('a', '<i4'), ('b', '<i4')",
        "('b', '<i4'), ('a', '<i4')",
    ),
    "a namespace": alone("import types\nY = types.SimpleNamespace(a={})\ndef fn(x): return x + Y.a", "1", "2"),
    "a deque": alone("import collections\nY = collections.deque([{}])\ndef fn(x): return x + Y[0]", "1", "2"),
    "a date": alone("import datetime\nY = datetime.datetime(2020, 1, 1, {})\ndef fn(x): return x + Y.hour", "1", "2"),
}
KINDS["an attribute of a module that is set later"] = tuple(
    {
        "fp_helpers": "def change(x): return x",
        "fp_script": f"import fp_helpers\ndef other(x): {text}\nfp_helpers.change = other\n"
        "def fn(x): return fp_helpers.change(x)",
    }
    for text in (ONE, TWO)
)


def present(function: Any) -> str:
    """The digest of today, without that of loadax 0.1.0."""
    digest, unknown = fingerprint(function)
    assert unknown is None
    return digest.partition("+")[2]


@pytest.mark.parametrize("kind", KINDS)
def test_change_changes_the_fingerprint(kind: str, tmp_path: Path) -> None:
    """Before the function is called and after, and not if only lines move."""
    seen = []
    for files in (*KINDS[kind], KINDS[kind][1], {name: f"\n# moved\n{text}" for name, text in KINDS[kind][1].items()}):
        with imported(tmp_path, files) as script:
            before = present(script.fn)
            result = script.fn(3)
            assert present(script.fn) == before
            seen.append((result, before))
    assert seen[0][0] != seen[1][0], "the change has no effect"
    assert seen[0][1] != seen[1][1]
    assert seen[1] == seen[2] == seen[3]


UNKNOWN: dict[str, tuple[str, str]] = {
    "an object of a helper module": (
        "import fp_helpers\ndef fn(x): return fp_helpers.thing(x)",
        "<fp_helpers.K object.*>, of type K",
    ),
    "a computed global": ("def fn(x): return globals()['f' + str(x)]", r"what it looks up with globals\(\)"),
    "a computed import": (
        "import importlib\ndef fn(x): return importlib.import_module('f' + x)",
        r"what it looks up with import_module\(\)",
    ),
    "evaluated text": ("def fn(x): return eval(x)", r"what it looks up with eval\(\)"),
    "a function of frompyfunc": (
        "import numpy as np\nf = np.frompyfunc(lambda x: x, 1, 1)\ndef fn(x): return f(x)",
        r".*\(vectorized\), which numpy.frompyfunc has made",
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_hidden_dependency_is_named(kind: str, tmp_path: Path) -> None:
    script, message = UNKNOWN[kind]
    helpers = "class K:\n  def __call__(self, x): return x\nthing = K()"
    with imported(tmp_path, {"fp_script": script, "fp_helpers": helpers}) as loaded:
        unknown = fingerprint(loaded.fn).unknown
        assert unknown is not None
        assert re.fullmatch(message, unknown)


def test_objects_that_a_program_works_with_hide_nothing(tmp_path: Path) -> None:
    script = (
        "import contextvars, logging, threading, weakref, typing\nfrom fp_helpers import go\nlock = threading.Lock()\n"
        "log = logging.getLogger('a')\nvariable = contextvars.ContextVar('b')\nknown = weakref.WeakValueDictionary()\n"
        "local = threading.local()\nT = typing.TypeVar('T')\nU = int | None\nV = list[int]\n"
        "def fn(x): return go(lock, log, variable, known, local, T, U, V)"
    )
    with imported(tmp_path, {"fp_script": script, "fp_helpers": "def go(*x): return x"}) as loaded:
        present(loaded.fn)


def test_script_is_not_run_again_by_a_function_that_imports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"fp_script": "def fn(x):\n  import fp_main\n  return fp_main.K", "fp_main": "raise SystemExit('again')"}
    with imported(tmp_path, files) as script:
        main = types.ModuleType("__main__")
        main.__dict__.update({"__file__": str(tmp_path / "fp_main.py"), "K": 1})
        monkeypatch.setitem(sys.modules, "__main__", main)
        one = present(script.fn)
        main.__dict__["K"] = 2
        assert one != present(script.fn)


def test_module_that_cannot_be_imported_is_left_to_the_call(tmp_path: Path) -> None:
    files = {"fp_script": "def fn(x):\n  import fp_helpers, fp_missing\n  return x", "fp_helpers": "1 / 0"}
    with imported(tmp_path, files) as script:
        present(script.fn)


def test_installed_package_counts_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any) -> Any:
        return np.isclose(x, 1)

    one = present(fn)
    module._version_of.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(importlib.metadata, "version", lambda name: f"{name} 99")
        assert present(fn) != one
    module._version_of.cache_clear()
    assert present(fn) == one


def test_version_of_a_package_of_another_name_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    known = types.ModuleType("fp_installed")
    monkeypatch.setitem(sys.modules, "fp_installed", known)
    known.__dict__.update(__file__="/usr/lib/python3/site-packages/fp_installed.py", __version__="1")
    exec("def f(x): return x", known.__dict__)

    def fn(x: Any) -> Any:
        return known.f(x)

    one = present(fn)
    known.__dict__["__version__"] = "2"
    module._version_of.cache_clear()
    assert present(fn) != one


def test_package_installed_from_a_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pip install .` installs a project, whose version stays the same while its code changes."""
    site = tmp_path / "site-packages"
    seen: list[str] = []
    for direct in ({"url": "file:///a", "dir_info": {}}, {"url": "file:///a.whl", "archive_info": {}}):
        for text in (ONE, TWO):
            name = f"fp_project{len(seen) // 2}"
            about = site / f"{name}-1.dist-info"
            about.mkdir(parents=True, exist_ok=True)
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
            (about / "direct_url.json").write_text(json.dumps(direct))
            with imported(site, {"fp_script": f"from {name} import fn", name: f"def fn(x): {text}"}) as script:
                seen.append(present(script.fn))
    assert seen[0] != seen[1]
    assert seen[2] == seen[3]


def test_loadax_and_the_standard_library_from_a_folder_are_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pip install -e .` installs loadax from a clone."""
    editable = SimpleNamespace(read_text=lambda _: '{"url": "file:///a", "dir_info": {}}')
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: editable)
    from_folder = module._is_from_folder.__wrapped__
    names = ["loadax", "json", "", "project"]
    assert [from_folder(name) for name in names] == [False, False, False, True]


def test_memory_mapped_array_counts_by_its_entries(tmp_path: Path) -> None:
    def of(name: str, last: int) -> str:
        np.array([1, 2, last], np.int16).tofile(tmp_path / name)
        array = np.memmap(tmp_path / name, np.int16, "r")
        return present(lambda row: array[row])

    assert of("a", 3) == of("b", 3)
    assert of("c", 4) != of("a", 3)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        *((None, False), ("builtins", False), ("sys", False), ("math", False), ("json.decoder", False)),
        *(("numpy", False), ("numpy.linalg", False), ("loadax", False), ("loadax.core", False)),
        *(("tests.core", True), ("__main__", True), ("a_module_made_by_exec", True)),
    ],
)
def test_which_modules_are_the_users(name: str | None, own: bool) -> None:
    assert is_own(name) is own


def test_module_beside_the_script_may_have_the_name_of_one_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = types.ModuleType("statistics")
    shadow.__file__ = str(tmp_path / "statistics.py")
    monkeypatch.setitem(sys.modules, "statistics", shadow)
    is_own.cache_clear()
    assert is_own("statistics")
    is_own.cache_clear()


def codes(text: CodeType) -> list[CodeType]:
    return [text, *(inner for part in text.co_consts if isinstance(part, CodeType) for inner in codes(part))]


@pytest.mark.parametrize("source", [np.lib.format, functools, json.decoder, module], ids=lambda each: each.__name__)
def test_names_are_those_that_dis_finds(source: types.ModuleType) -> None:
    """The bytes of code are read here, as `dis` is slow; among them a module of more than 256 names."""
    for code in codes(compile(Path(str(source.__file__)).read_text(), "", "exec")):
        wanted: set[str] = set()
        for each in codes(code):
            steps = dis.get_instructions(each)
            wanted.update(step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
        assert {*names_in(code).globally} == wanted
    many = compile("def f(): " + "; ".join(f"name{number}" for number in range(700)), "", "exec")
    assert {*names_in(many).globally} == {f"name{number}" for number in range(700)}


def test_graph_of_modules_is_walked_without_recursion(tmp_path: Path) -> None:
    """A chain of calls longer than Python's stack, over a hundred files; each function is taken apart once."""
    files = {
        f"fp_m{number}": f"from fp_m{number + 1} import go as further\nLIMIT = {number}\n"
        + "\n".join(f"def f{i}(x): return f{i + 1}(x) + LIMIT" for i in range(15))
        + "\ndef f15(x): return further(x)\ndef go(x): return f0(x)"
        for number in range(100)
    }
    files["fp_m100"] = "def go(x): return x"
    files["fp_script"] = "from fp_m0 import go\ndef fn(x): return go(x)"
    with imported(tmp_path, files) as script:
        one = present(script.fn)
        taken = names_in.cache_info().misses
        assert present(script.fn) == one
        assert names_in.cache_info().misses == taken
    with imported(tmp_path, files | {"fp_m100": "def go(x): return -x"}) as script:
        assert present(script.fn) != one


def test_former_fingerprints_are_those_before_the_plus() -> None:
    one, two = "0123456789abcdef", "fedcba9876543210"
    known: Mapping[str, Any] = {"functions": [f"{one}+{two}", f"f {one}+{two}"], "rows": 3, "text": "a+b", "none": None}
    assert former(known) == {"functions": [one, f"f {one}"], "rows": 3, "text": "a+b", "none": None}


def test_functions_in_a_set_count_in_any_order(tmp_path: Path) -> None:
    """A set has them by their addresses, which differ between two programs."""
    functions = "\n".join(f"def f{number}(x): return x + {number}" for number in range(60))
    names = ", ".join(f"f{number}" for number in range(60))
    seen, alive = set(), []
    for _ in range(3):
        with imported(tmp_path, {"fp_script": f"{functions}\nS = {{{names}}}\ndef fn(x): return x in S"}) as script:
            alive.append(script)
            seen.add(present(script.fn))
    assert len(seen) == 1
