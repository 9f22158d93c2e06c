"""Leaks and hangs fail the test that has them and no other, and tests run in their order.

Each case is a test session of its own.
"""

import re
from pathlib import Path

import psutil
import pytest

from tests.limits import HANG

pytest_plugins = ["pytester"]

CONFTEST = (Path(__file__).parents[1] / "conftest.py").read_text().replace("GRACE = 30.0", "GRACE = 1.0")


PLUGINS = ("-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "xdist.plugin")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests can import their helpers, and no session loads plugins that it does not need: one of them imports JAX."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\n")  # pytest would look for settings in the folders above, such as /tmp
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess(*PLUGINS, *arguments, timeout=HANG)


LEAKS = """
    import subprocess, sys, threading, weakref
    import pytest

    @pytest.fixture(scope="module")
    def shared_thread():
        stop = threading.Event()
        threading.Thread(target=stop.wait, name="loadax-shared").start()
        yield
        stop.set()

    def process(seconds):
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])

    def test_a_thread():
        threading.Thread(target=threading.Event().wait, name="loadax-read-7", daemon=True).start()
    def test_a_process():
        process(3600)
    def test_the_next():
        pass
    def test_anothers_thread():
        threading.Thread(target=threading.Event().wait, name="jax-compiler", daemon=True).start()
    def test_what_ends_within_the_grace():
        process(0.1)
    def test_what_the_garbage_collector_ends():
        class Loop: pass
        loop, stop = Loop(), threading.Event()
        loop.itself = loop
        weakref.finalize(loop, stop.set)
        threading.Thread(target=stop.wait, name="loadax-read", daemon=True).start()
    def test_what_ran_before(shared_thread):
        pass
"""


def test_a_test_that_leaves_a_thread_or_a_process_fails_and_what_it_left_is_named(pytester: pytest.Pytester) -> None:
    result = run(pytester, LEAKS)
    result.assert_outcomes(passed=7, errors=2)
    errors = [line for line in result.outlines if line.startswith("ERROR ")]
    assert [line.split("::")[1].split()[0] for line in errors] == ["test_a_thread", "test_a_process"]
    result.stdout.fnmatch_lines(["the test left running: thread 'loadax-read-7'"])
    result.stdout.re_match_lines([r"the test left running: process \d+ \(.*time\.sleep\(3600\).*"])


def test_tests_see_eight_cpu_devices() -> None:
    import jax

    assert [device.platform for device in jax.devices()] == ["cpu"] * 8


HANGING = """
    import ctypes, gc, subprocess, sys, time
    import pytest

    class Slow(Exception):
        def __str__(self):
            time.sleep(3600)

    def fails():
        raise Slow

    # A signal handler would raise in none of these, or in the midst of pytest's own work.
    HANGS = {
        1: lambda: ctypes.PyDLL(None).sleep(3600),  # C code that holds the GIL
        2: lambda: [gc.callbacks.append(lambda *_: time.sleep(3600)), gc.collect()],
        4: fails,
    }

    CASES = [pytest.param(number, marks=[pytest.mark.timeout(1)] * (number in HANGS)) for number in range(6)]

    @pytest.mark.parametrize("number", CASES)
    def test_it(number):
        with open("ran", "a") as file:
            file.write(f"{number}\\n")
        if number in HANGS:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)  # LEFT"])
            HANGS[number]()
"""


def test_a_test_whose_time_is_up_fails_alone_and_takes_its_processes_along(pytester: pytest.Pytester) -> None:
    mark = f"left by {pytester.path.name}"
    result = run(pytester, HANGING.replace("LEFT", mark), "-n", "1")
    result.assert_outcomes(passed=3, failed=3)
    result.stdout.fnmatch_lines(
        [f"worker 'gw*' crashed while running '*::test_it[[]{number}[]]'" for number in (1, 2, 4)]
    )
    result.stderr.fnmatch_lines(["Timeout (0:00:01)!", "* in test_it"] * 2 + ["Timeout (0:00:01)!", "* in __str__"])
    assert (pytester.path / "ran").read_text().split() == ["0", "1", "2", "3", "4", "5"], "each ran once"
    assert not [each for each in psutil.process_iter(["cmdline"]) if mark in " ".join(each.info["cmdline"] or ())]


SERVED = """
import pytest

@pytest.fixture
def range_server():
    return None

@pytest.fixture
def proxy(range_server):
    return None

def test_it(proxy):
    pass
"""


def test_unit_tests_come_first_and_folders_and_servers_are_markers(pytester: pytest.Pytester) -> None:
    tests = pytester.mkdir("tests")
    for folder in ("scripts", "laws", "plan", "processes", "servers"):
        (tests / folder).mkdir()
        (tests / folder / f"test_{folder}.py").write_text("def test_it(): pass\n")
    (tests / "test_first.py").write_text("def test_it(): pass\n")
    (tests / "plan" / "test_remote.py").write_text(SERVED)
    (tests / "scripts" / "test_run.py").write_text("def test_it(): pass\n")
    (tests / "conftest.py").write_text(CONFTEST)
    (pytester.path / "pytest.ini").write_text("[pytest]\nmarkers = servers\n  processes\n  scripts\n")
    order = ["plan", "remote", "first", "laws", "servers", "processes", "run", "scripts"]
    for chosen, expected in {
        "": order,
        "not (scripts or processes or servers)": ["plan", "first", "laws"],
        "servers": ["remote", "servers"],
    }.items():
        result = pytester.runpytest_subprocess(*PLUGINS, "-q", "--collect-only", "-m", chosen)
        found = [line.split("test_")[1].split(".py")[0] for line in result.outlines if "::" in line]
        assert found == expected


EXAMPLES = """
    from hypothesis import given, strategies as st

    @given(st.integers())
    def test_it(number): print(number)
"""


def test_laws_try_the_same_examples_in_every_run_unless_told_otherwise(pytester: pytest.Pytester) -> None:
    def examples(*arguments: str) -> list[str]:
        result = run(pytester, EXAMPLES, "-s", "-p", "_hypothesis_pytestplugin", *arguments)
        result.assert_outcomes(passed=1)
        return [line for line in result.outlines if re.fullmatch(r"\.?-?\d+", line)]

    first = examples()
    assert len(first) > 20
    assert first == examples()
    assert examples("--hypothesis-profile=dev") == examples("--hypothesis-profile=dev")
    assert examples("--hypothesis-profile=fresh") != examples("--hypothesis-profile=fresh")


VARYING = """
    import os
    import pytest

    @pytest.mark.parametrize("content", [os.urandom(40), os.urandom(40)])
    def test_it(content): pass
"""


def test_all_test_processes_collect_the_same_names(pytester: pytest.Pytester) -> None:
    """Bytes that differ between processes, as compressed ones do by the second, are no part of a name."""
    run(pytester, VARYING, "-n", "2").assert_outcomes(passed=2)
