"""The leak fixture catches what it is there for, and nothing else. Each case is a test session of its own."""

from pathlib import Path

import psutil
import pytest

from tests.limits import HANG

pytest_plugins = ["pytester"]

CONFTEST = (Path(__file__).parent / "conftest.py").read_text().replace("GRACE = 3.0", "GRACE = 0.3")

THREAD = """
    import threading
    def test_it():
        threading.Thread(target=threading.Event().wait, name={name!r}, daemon=True).start()
"""

PROCESS = """
    import subprocess, sys
    def test_it():
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep({seconds})"])
"""


@pytest.fixture(autouse=True)
def helpers_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def run(pytester: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=HANG)


def test_a_leaked_thread_is_named(pytester: pytest.Pytester) -> None:
    result = run(pytester, THREAD.format(name="loadax-read-7"))
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["the test left running: thread 'loadax-read-7'"])


def test_a_leaked_process_is_named_and_ended(pytester: pytest.Pytester) -> None:
    test = PROCESS.format(seconds=60) + "    def test_the_next():\n        assert True\n"
    result = run(pytester, test)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.re_match_lines([r"the test left running: process \d+ \(.*time\.sleep\(60\).*"])


def test_other_threads_are_nobodys_business(pytester: pytest.Pytester) -> None:
    run(pytester, THREAD.format(name="jax-compiler")).assert_outcomes(passed=1)


def test_what_ends_within_the_grace_is_no_leak(pytester: pytest.Pytester) -> None:
    run(pytester, PROCESS.format(seconds=0.1)).assert_outcomes(passed=1)


def test_what_only_the_garbage_collector_ends_is_no_leak(pytester: pytest.Pytester) -> None:
    test = """
        import threading, weakref
        def test_it():
            class Loop: pass
            loop, stop = Loop(), threading.Event()
            loop.itself = loop
            weakref.finalize(loop, stop.set)
            threading.Thread(target=stop.wait, name="loadax-read", daemon=True).start()
    """
    run(pytester, test).assert_outcomes(passed=1)


def test_what_ran_before_the_test_is_not_its_leak(pytester: pytest.Pytester) -> None:
    test = """
        import pytest, threading
        @pytest.fixture(scope="module")
        def thread():
            stop = threading.Event()
            threading.Thread(target=stop.wait, name="loadax-shared").start()
            yield
            stop.set()
        def test_it(thread): pass
    """
    run(pytester, test).assert_outcomes(passed=1)


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

    @pytest.mark.parametrize("number", range(6))
    def test_it(number):
        with open("ran", "a") as file:
            file.write(f"{number}\\n")
        if number in HANGS:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)  # LEFT"])
            HANGS[number]()
"""


def test_a_test_whose_time_is_up_fails_alone_and_takes_its_processes_along(pytester: pytest.Pytester) -> None:
    mark = f"left by {pytester.path.name}"
    result = run(pytester, HANGING.replace("LEFT", mark), "-n", "1", "--timeout", "3")
    result.assert_outcomes(passed=3, failed=3)
    result.stdout.fnmatch_lines([f"worker 'gw*' crashed while running '*::test_it[[]{number}[]]'" for number in (1, 2, 4)])
    result.stderr.fnmatch_lines(["Timeout (0:00:03)!", "* in test_it"] * 2 + ["Timeout (0:00:03)!", "* in __str__"])
    assert (pytester.path / "ran").read_text().split() == ["0", "1", "2", "3", "4", "5"], "each ran once"
    assert not [each for each in psutil.process_iter(["cmdline"]) if mark in " ".join(each.info["cmdline"] or ())]


def test_unit_tests_come_first_and_folders_are_markers(pytester: pytest.Pytester) -> None:
    tests = pytester.mkdir("tests")
    for folder in ("scripts", "laws", "plan", "processes", "servers"):
        (tests / folder).mkdir()
        (tests / folder / f"test_{folder}.py").write_text("def test_it(): pass\n")
    (tests / "test_first.py").write_text("def test_it(): pass\n")
    (tests / "conftest.py").write_text(CONFTEST)
    (pytester.path / "pytest.ini").write_text("[pytest]\nmarkers = servers\n  processes\n  scripts\n")
    order = ["plan", "first", "laws", "servers", "processes", "scripts"]
    for chosen, expected in {"": order, "not (scripts or processes or servers)": order[:3], "servers": ["servers"]}.items():
        result = pytester.runpytest_subprocess("-q", "--collect-only", "-m", chosen)
        found = [line.split("test_")[1].split(".py")[0] for line in result.outlines if "::" in line]
        assert found == expected
