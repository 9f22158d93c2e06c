"""Mutates a module and tells which changes no test notices: `python -m tests.mutate plan/buckets --tests tests/plan`.

A mutant is the module with one operator, comparison, number or branch changed. It is written in place of the module in
a copy of the repository, where the tests are run until the first that fails. Mutants that pass survive.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

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
    "plan/mix": ["tests/plan/test_mix.py", "tests/test_combine.py", "tests/kept"],
    "plan/skips": ["tests/plan/test_skips.py", "tests/plan/test_batches.py"],
}


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


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """What each mutant changes, and its text."""
    tree = ast.parse(source)
    for index, node in enumerate(ast.walk(tree)):
        for field, value in changes(node):
            other = copy.deepcopy(tree)
            changed = list(ast.walk(other))[index]
            setattr(changed, field, value)
            before, after = ast.unparse(node), ast.unparse(ast.fix_missing_locations(changed))
            line = getattr(node, "lineno", 0)
            yield f"{line}: {before.splitlines()[0]} -> {after.splitlines()[0]}", ast.unparse(other)


def survives(text: str, path: Path, tests: list[str], folder: Path, limit: float) -> bool:
    """Whether all tests pass with this text of a module in a copy of the repository."""
    (folder / path).write_text(text)
    run = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=dev"]
    # Processes that tests start elsewhere import the copy too.
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    # In a session of its own, which ends as a whole: workers of a test that hangs would outlive pytest.
    with subprocess.Popen(
        [*run, *tests],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as pytest:
        try:
            return pytest.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(pytest.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="such as plan/buckets")
    parser.add_argument("--tests", nargs="+", help="files or folders; default: those named for the module here")
    parser.add_argument("--most", type=int, default=0, help="number of mutants, drawn at random; 0: all")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a run, beyond which a mutant is killed")
    given = parser.parse_args()
    path = Path("loadax", given.module.removesuffix(".py")).with_suffix(".py")
    source = (ROOT / path).read_text()
    listed = [mutant for mutant in mutants(source) if "__doc__" not in mutant[0]]
    if given.most:
        listed = random.Random(0).sample(listed, min(given.most, len(listed)))
    tests = given.tests or TESTS.get(given.module.removesuffix(".py"))
    if not tests:
        parser.error(f"no tests are named for {given.module}; pass --tests")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Not links, which Python would follow to the unchanged module.
        for copied in ROOT.iterdir():
            if copied.is_dir() and not copied.name.startswith("."):
                shutil.copytree(copied, folder / copied.name)
            elif copied.is_file():
                shutil.copy(copied, folder)
        if not survives(source, path, tests, folder, given.limit):
            parser.error("the tests fail without any change, or take longer than --limit")
        survivors = []
        for number, (change, text) in enumerate(listed):
            alive = survives(text, path, tests, folder, given.limit)
            if alive:
                survivors.append(change)
            print(f"{number + 1}/{len(listed)} {'SURVIVED' if alive else 'killed'} {change}", flush=True)
        print(f"\n{len(survivors)} of {len(listed)} mutants of {path} survived:", *survivors, sep="\n  ")


if __name__ == "__main__":
    main()
