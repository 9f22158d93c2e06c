"""The setup of every test: eight virtual CPU devices, an order, a time limit, and nothing left running at its end."""

import os

# Before anything imports JAX: it reads them once. Set, not defaulted: the tests mean exactly this machine, whatever the
# shell has.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# Compiles machine code that isn't optimised: a test runs what it compiles a few times, and compiling is a third faster.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
# Threads of matrix products wait for more of them by spinning, on a processor that another test needs.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Keras reads it once too, whichever test is the first to import it.
os.environ["KERAS_BACKEND"] = "jax"
# Some container images set it: each of the hundreds of Python processes here would compile all of loadax again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import faulthandler
import gc
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

GRACE = 30.0
"""Seconds that what was told to stop has for it; on an idle machine it takes less than one."""

TESTS = Path(__file__).parent
KERNEL_LISTS_CHILDREN = Path("/proc/thread-self/children").exists()
STDERR = pytest.StashKey[int]()
LATE = ("laws", "servers", "processes", "scripts")
"""Folders whose tests run behind all others, in this order. The last three are markers too."""

SERVERS = {"gcs_server", "range_server", "s3_server"}
"""Fixtures of `tests.servers.fixtures`: a test of any folder that has one of them is marked `servers`."""

LONG = ("test_docs.py", "test_run.py", "test_small.py", "test_language_model.py", "test_digits.py")
"""Files of the last folder that take longest. They begin first, so that none of them runs alone at the end."""

# `ci` and `dev` try the same examples in every run, so that no run fails by chance; more of the same ones would find
# nothing new. `ci` tries as many as `tests.mutate` needs to find its mutants. `fresh` draws new ones, in the breadth
# that the laws were written with, and `soak` for hours.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None, max_examples=25)
hypothesis.settings.register_profile("dev", hypothesis.settings.get_profile("ci"), max_examples=10)
hypothesis.settings.register_profile("fresh", deadline=None, derandomize=False)
hypothesis.settings.register_profile("soak", deadline=None, derandomize=False, max_examples=10_000)
hypothesis.settings.load_profile("ci")


def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as there are processors, up to eight.

    While a test waits for a server or for what it kills, another one runs.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(8, processors + processors // 2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by their folder and their servers.

    Puts those that show least about loadax itself, and take longest, last.
    """

    def rank(item: pytest.Item) -> tuple[int, int]:
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("servers")
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if folder not in LATE:
            return 0, 0
        if folder != "laws":
            item.add_marker(folder)
        name = item.path.name
        return LATE.index(folder) + 1, LONG.index(name) if folder == LATE[-1] and name in LONG else len(LONG)

    items.sort(key=rank)


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the terminal's stderr, which output capturing takes away while a test runs.

    Makes interrupts mean what they usually do.

    `nohup` and `&` start a process that ignores them, and programs inherit that from it: also those that tests
    interrupt.
    """
    config.stash[STDERR] = os.dup(2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names bytes after their argument.

    Compressed ones hold the time of day: all test processes must call a test by the same name, or none runs.
    """
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Lets the many tests that collect garbage look at their own objects alone, not at JAX and all tests each time.

    What is imported stays, so looking for garbage meanwhile takes a quarter of the time and finds little.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Keeps what the tests of a file have imported out of later looks for garbage, a twentieth of the time."""
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Prints the stack of every thread when a test's time is up, and ends this process.

    The scheduler starts another one for the other tests.

    The timer is C code that needs no GIL. A signal handler would raise wherever Python happens to be: in a callback of
    the garbage collector, where exceptions are ignored, or never, while C code waits.
    """
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=item.config.stash[STDERR])
    item.cancel_timeout = faulthandler.cancel_dump_traceback_later  # type: ignore[attr-defined]
    return True


def pytest_enter_pdb() -> None:
    """Gives whoever looks at a test with a debugger as much time as they like."""
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each process the next file when it is done with one."""
    from tests.scheduling import ByFile

    return ByFile(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Kills what a test process that crashed has left running."""
    if error is None:
        return
    mark = {
        "PYTEST_XDIST_TESTRUNUID": node.workerinput["testrunuid"],
        "PYTEST_XDIST_WORKER": node.workerinput["workerid"],
    }
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if mark.items() <= process.environ().items():
                process.kill()


class Running:
    """The threads of loadax and the child processes that exist at this moment.

    Those of requests to storage are the process's: they end when no request has come for some seconds.
    """

    def __init__(self) -> None:
        self.threads = {
            thread
            for thread in threading.enumerate()
            if thread.name.startswith("loadax") and thread.name != "loadax-storage"
        }
        self.processes = _started()

    def forget(self, before: "Running") -> "Running":
        """This, without what ran before."""
        self.threads -= before.threads
        self.processes -= before.processes
        return self

    def __bool__(self) -> bool:
        return bool(self.threads or self.processes)

    def __str__(self) -> str:
        threads = [f"thread {thread.name!r}" for thread in self.threads]
        return ", ".join(sorted(threads + [f"process {child.pid} ({_command(child)!r})" for child in self.processes]))


_lasting: set[int] = set()
"""Children that nobody has to end: Python's resource tracker ends with the interpreter, and so does the fork server."""


def _started() -> set[psutil.Process]:
    """What this process has started, and what that has started, without what lasts as long as this process."""
    own = _children(os.getpid())
    _lasting.intersection_update(own)
    found = set()
    for pid in own | {below for child in own for below in _below(child)}:
        if pid not in _lasting:
            with suppress(psutil.NoSuchProcess):
                child = psutil.Process(pid)
                if pid in own and _lasts(child):
                    _lasting.add(pid)
                elif child.status() != psutil.STATUS_ZOMBIE:
                    found.add(child)
    return found


def _below(pid: int) -> set[int]:
    children = _children(pid)
    return children | {below for child in children for below in _below(child)}


def _children(pid: int) -> set[int]:
    """Processes that a process has started, from a small file of each of its threads, where the kernel has these.

    psutil reads a file of each process of the machine. Of this process, those threads are asked that run Python: the
    many of C++ libraries start none, and what a thread has started passes to the main one when it ends.
    """
    if not KERNEL_LISTS_CHILDREN:
        return {child.pid for child in psutil.Process(pid).children()}
    found: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        threads = (
            [pid, *(thread.native_id for thread in threading.enumerate())]
            if pid == os.getpid()
            else [thread.name for thread in os.scandir(f"/proc/{pid}/task")]
        )
        for thread in threads:
            with suppress(FileNotFoundError, ProcessLookupError):  # what has ended meanwhile has no children any more
                file = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY)
                try:
                    found.update(map(int, os.read(file, 1 << 16).split()))
                finally:
                    os.close(file)
    return found


def _lasts(child: psutil.Process) -> bool:
    return child.name() == "test-forkserver" or "multiprocessing.resource_tracker" in _command(child)


def _command(child: psutil.Process) -> str:
    try:
        return " ".join(child.cmdline())
    except psutil.Error:
        return ""


def wait_for_leaks(before: Running, grace: float = GRACE) -> Running:
    """What a test left running, after `grace` seconds and a garbage collection; empty as soon as nothing is left."""
    deadline, pause = time.monotonic() + grace, 0.001
    while (leaked := Running().forget(before)) and time.monotonic() < deadline:
        if pause > 0.02:  # most threads end by themselves, long before all objects have been looked at
            gc.collect()
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return leaked


@pytest.fixture(autouse=True, scope="session")
def short_pauses() -> Iterator[None]:
    """Has requests that fail sent again within half a second, five times as for users, who wait for six seconds."""
    from loadax.files import attempts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "PAUSES", (0.05, 0.1, 0.1, 0.1, 0.1))
        yield


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves a thread of loadax or a child process behind, and names it."""
    before = Running()
    yield
    leaked = wait_for_leaks(before)
    if leaked:
        message = f"the test left running: {leaked}"
        for child in leaked.processes:
            child.kill()
        pytest.fail(message, pytrace=False)
