"""The leak fixture catches what it is there for, and nothing else. Each case is a test session of its own."""

from pathlib import Path

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


def run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=HANG)


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
