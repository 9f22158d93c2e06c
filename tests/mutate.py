"""Mutates a module and tells which changes no test notices: `python -m tests.mutate plan/buckets --then tests/laws`.

A mutant is the module with one operator, comparison, number or branch changed. It is written in place of the module in
a copy of the repository, where the tests that reach the changed line are run until the first that fails, the quickest
first. Mutants that pass survive. Lines that only other processes of a test reach count as not reached.

The tests of the module's own folder come first. The tests of `--then`, which take longer to trace, are run for the
survivors alone.
"""

import argparse
import ast
import copy
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
TESTS = {
    "plan/balance": ["tests/plan/test_balance.py"],
    "plan/batches": [
        "tests/plan/test_batches.py",
        "tests/loader/test_balance.py",
        "tests/laws/test_batch_plan_laws.py",
    ],
    "plan/buckets": ["tests/plan/test_buckets.py", "tests/loader/test_buckets.py"],
    "plan/even": ["tests/plan/test_mix.py"],
    "plan/find": [
        "tests/loader/test_balance.py",
        "tests/plan/test_buckets.py",
        "tests/plan/test_mix.py",
        "tests/laws/test_find_laws.py",
    ],
    "plan/mix": ["tests/plan/test_mix.py", "tests/test_combine.py", "tests/kept/test_kept.py"],
    "plan/skips": ["tests/plan/test_skips.py", "tests/plan/test_batches.py"],
}
PYTEST = ["-n", "0", "-q", "-x", "-p", "no:cacheprovider"]
# Set before a module starts JAX, as tests/conftest.py does.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "OPENBLAS_NUM_THREADS": "1"}

_LONGEST = 1200.0  # seconds of the tests without any change
_GRACE = 10.0  # seconds that a test may take on a busy machine, whatever it took before


@dataclass(frozen=True)
class Mutant:
    """A change of a module.

    Args:
        change: The change as text.
        text: The changed module.
        lines: Lines of the statement that is changed. Empty: it runs when the module is imported.
    """

    change: str
    text: str
    lines: range


def changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Mutations of one node: the field that changes, and its new value."""
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OPERATORS:
        yield "op", OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        yield "ops", [OPERATORS[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "value", node.value + 1
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "value", not node.value
    elif isinstance(node, ast.If | ast.IfExp):
        yield "test", ast.UnaryOp(ast.Not(), node.test)


def mutants(source: str) -> Iterator[Mutant]:
    tree = ast.parse(source)
    statements = dict[ast.AST, ast.AST]()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.stmt):
            # Inner statements come later, and have the last word.
            statements |= dict.fromkeys(ast.walk(statement), statement)
    inside = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in function.body
        for node in ast.walk(statement)
    }
    # `strict=` is an assertion: its absence changes nothing that works.
    asserted = {node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "strict"}
    for index, node in enumerate(ast.walk(tree)):
        if node in asserted:
            continue
        for field, value in changes(node):
            other = copy.deepcopy(tree)
            changed = list(ast.walk(other))[index]
            setattr(changed, field, value)
            before, after = ast.unparse(node), ast.unparse(ast.fix_missing_locations(changed))
            first = getattr(node, "lineno", 0)
            statement = statements.get(node, node)
            # Not the branches of an `if`, but all lines of its condition: it may begin below the `if`.
            last = node.test if isinstance(node, ast.If) else statement
            end = getattr(last, "end_lineno", first)
            change = f"{first}: {before.splitlines()[0]} -> {after.splitlines()[0]}"
            lines = range(getattr(statement, "lineno", first), end + 1) if node in inside else range(0)
            yield Mutant(change, ast.unparse(other), lines)


class Reached:
    """A plugin of pytest that notes which tests reach which lines of a file, and how long they take."""

    def __init__(self, file: Path):
        self.tests: defaultdict[int, set[str]] = defaultdict(set)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._file = str(file)
        self._test = ""

    def trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != self._file:
            return None
        if event in ("call", "line"):
            self.tests[frame.f_lineno].add(self._test)
        return self.trace

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._test = item.nodeid
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self._test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration


def forked(run: Callable[[], int], folder: Path, limit: float) -> int | None:
    """The exit code of a function in a child that is a fork of this process; None: it takes too long."""
    child = os.fork()
    if not child:
        result = 1
        try:
            # Its processes end with it: workers of a test that hangs would outlive it.
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.chdir(folder)
            sys.path.insert(0, str(folder))
            # Programs that tests start import the copy too.
            os.environ["PYTHONPATH"] = str(folder)
            output = os.open(folder / "output.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for stream in range(3):
                os.dup2(output, stream)
            result = run()
        finally:
            os._exit(result)
    end = time.monotonic() + limit
    code: int | None = None
    try:
        while code is None and time.monotonic() < end:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.02)
    finally:
        # Ctrl-C does not reach the child, which has a session of its own.
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if code is None:
            os.kill(child, signal.SIGKILL)  # it may not have begun its session yet
            os.waitpid(child, 0)
    return code


def matching(module: str) -> list[str]:
    """The tests of a module: those named here, else the file that has its name, else the folder nearest to its own."""
    if module in TESTS:
        return TESTS[module]
    place = ROOT / "tests" / module
    own = place.with_name(f"test_{place.name}.py")
    if own.exists():
        return [str(own.relative_to(ROOT))]
    return [str(next(folder for folder in place.parents if folder.is_dir()).relative_to(ROOT))]


def reached(tests: Sequence[str], path: Path, folder: Path) -> tuple[dict[int, list[str]], list[float]]:
    """The tests that reach each line, the quickest first, and the seconds of all tests.

    Raises:
        RuntimeError: If the tests fail.
    """
    notes = folder / "reached.json"

    def run() -> int:
        plugin = Reached(folder / path)
        threading.settrace(plugin.trace)
        code = int(pytest.main([*PYTEST, *tests], plugins=[plugin]))
        lines = {
            line: sorted(found - {""}, key=lambda test: plugin.seconds[test]) for line, found in plugin.tests.items()
        }
        notes.write_text(json.dumps([lines, list(plugin.seconds.values())]))
        return code

    if forked(run, folder, _LONGEST) != 0:
        print((folder / "output.txt").read_text()[-3000:], file=sys.stderr)
        raise RuntimeError(f"the tests fail without any change, or take longer than {_LONGEST:.0f} seconds")
    lines, seconds = json.loads(notes.read_text())
    return {int(line): found for line, found in lines.items()}, seconds


def survives(text: str, path: Path, tests: Sequence[str], folder: Path, seconds: Sequence[float]) -> bool:
    """Whether all tests pass with this text of a module in a copy of the repository.

    They fail where one takes much longer than the slowest one of these seconds, or all take much longer than the sum.
    """
    (folder / path).write_text(text)
    # Two texts of one second and one length would look alike.
    Path(importlib.util.cache_from_source(str(folder / path))).unlink(missing_ok=True)
    arguments = [*PYTEST, "--timeout", str(_GRACE + 2 * max(seconds)), *tests]
    return forked(lambda: int(pytest.main(arguments)), folder, 2 * (_GRACE + sum(seconds))) == 0


def survivors(listed: Sequence[Mutant], path: Path, tests: Sequence[str], folder: Path) -> list[Mutant]:
    """The mutants of a module in a copy of the repository that all of these tests pass. Prints a line for each.

    Raises:
        RuntimeError: If the tests fail without any change.
    """
    shutil.copy(ROOT / path, folder / path)
    lines, seconds = reached(tests, path, folder)
    alive = []
    for number, mutant in enumerate(listed):
        reaching = list(dict.fromkeys(test for line in mutant.lines for test in lines.get(line, [])))
        if not mutant.lines:
            reaching = list(tests)
        survived = not reaching or survives(mutant.text, path, reaching, folder, seconds)
        if survived:
            alive.append(mutant)
        verdict = "SURVIVED" if survived else "killed"
        print(f"{number + 1}/{len(listed)} {verdict} {mutant.change} ({len(reaching)} tests)", flush=True)
    return alive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="such as plan/buckets")
    parser.add_argument("--tests", nargs="+", help="files or folders; default: those that match the module")
    parser.add_argument("--then", nargs="+", help="files or folders for the mutants that survive the first ones")
    parser.add_argument("--most", type=int, default=0, help="number of mutants, drawn at random; 0: all")
    given = parser.parse_args()
    module = given.module.removesuffix(".py")
    path = Path("loadax", module).with_suffix(".py")
    listed = [mutant for mutant in mutants((ROOT / path).read_text()) if "__doc__" not in mutant.change]
    if given.most:
        listed = random.Random(0).sample(listed, min(given.most, len(listed)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C, so that no child outlives it
    os.environ |= ENVIRONMENT
    import jax  # noqa: F401 - every child has it, and what else is slow to import

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        # Not links, which Python would follow to the unchanged module.
        for copied in ROOT.iterdir():
            if copied.is_dir() and not copied.name.startswith("."):
                shutil.copytree(copied, folder / copied.name)
            elif copied.is_file():
                shutil.copy(copied, folder)
        for imported in [name for name in sys.modules if name.split(".")[0] in ("tests", "loadax")]:
            del sys.modules[imported]  # children import those of the copy
        alive = survivors(listed, path, given.tests or matching(module), folder)
        if alive and given.then:
            alive = survivors(alive, path, given.then, folder)
    print(f"\n{len(alive)} of {len(listed)} mutants of {path} survived:")
    for mutant in alive:
        print(f"  {mutant.change}")


if __name__ == "__main__":
    main()
