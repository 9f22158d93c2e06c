"""Python programs for tests, forked from a process that has imported JAX already.

Some 30 ms each instead of a second and more.

A child runs as `python -W error` would run it: `["-c", code]`, `["-m", module, ...]` or `["script.py", ...]`, in a
working directory and an environment of its own, and it ends as an interpreter ends. What differs is that `PRELOADED` is
imported before it begins, so a test of what an import does, of memory, or of a library that reads its environment when
it is imported needs `subprocess`.

One server belongs to each test process. It starts with the first child and ends with its owner. It has one thread, so
that forking is safe.
"""

import atexit
import faulthandler
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, final

from tests.limits import HANG
from tests.stacks import abort

ROOT = Path(__file__).parents[1]
NAME = "test-forkserver"
"""What the operating system calls the server; its children are called `python`."""

PRELOADED = (
    "jax",
    "jax.numpy",
    "numpy",
    "flax.nnx",
    "optax",
    "loadax",
    "loadax.loader.dataloader",
    "loadax.io",
    "loadax.packing.pack",
    "pytest",
)
MESSAGE = 1 << 17  # bytes of one request at most
JAX_SETTINGS = (  # JAX read them when the server imported it
    "JAX_PLATFORMS",
    "JAX_NUM_CPU_DEVICES",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
)


@final
class Child:
    """One program: the part of `subprocess.Popen` that tests use.

    Args:
        arguments: what would stand behind `python`.
        cwd: its working directory.
        env: its environment; None: this process's.
        stdout: an open file, `subprocess.PIPE`, or None for this process's own.
        stderr: as stdout, or `subprocess.STDOUT`.
        new_session: whether it leads a process group of its own, so that all that it starts can be killed with it.
    """

    def __init__(
        self,
        arguments: Sequence[str | os.PathLike[str]],
        *,
        cwd: str | os.PathLike[str] = ROOT,
        env: Mapping[str, str] | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        new_session: bool = False,
    ):
        self.args = [os.fspath(argument) for argument in arguments]
        self.returncode: int | None = None
        pipes: list[int] = []
        self.stdout, out = _output(stdout, 1, pipes)
        self.stderr, error = (None, out) if stderr == subprocess.STDOUT else _output(stderr, 2, pipes)
        request = {
            "arguments": self.args,
            "cwd": os.fspath(cwd),
            "env": dict(os.environ if env is None else env),
            "new_session": new_session,
        }
        self.pid = _server().start(request, [out, error])
        for descriptor in pipes:
            os.close(descriptor)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        if failed:  # else a program without an end would hide what has failed
            self.kill()
        self.wait()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the program runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """
        code = self._ended(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self.returncode = _server().ended(self.pid, timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What the program has still to say on the pipes, after its end.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds, with the stacks of the program, which is ended.
        """
        said = ["", ""]

        def read(number: int, pipe: IO[str]) -> None:
            said[number] = pipe.read()

        pipes = [(number, pipe) for number, pipe in enumerate((self.stdout, self.stderr)) if pipe is not None]
        readers = [threading.Thread(target=read, args=each, daemon=True) for each in pipes]
        for reader in readers:
            reader.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired as expired:
            stacks = abort(self.pid)
            for reader in readers:
                reader.join(HANG)
            expired.add_note("\n".join([*said, stacks]))
            raise
        for reader in readers:
            reader.join(HANG)  # what the program started may still hold the pipe
        for _, pipe in pipes:
            pipe.close()
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        """Sends a signal to the program while it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends the program at once."""
        self.send_signal(signal.SIGKILL)


def run(arguments: Sequence[str | os.PathLike[str]], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Runs a program to its end, as `subprocess.run(..., capture_output=True, text=True)` does.

    Args:
        arguments: what would stand behind `python`.
        options: of `Child`.

    Raises:
        subprocess.TimeoutExpired: after `HANG` seconds; the program is ended, and its stacks are in a note.
    """
    with Child(arguments, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}) as child:
        try:
            out, error = child.communicate(HANG)
        except BaseException:
            child.kill()
            raise
        return subprocess.CompletedProcess(child.args, child.wait(), out, error)


def _output(wanted: IO[Any] | int | None, own: int, pipes: list[int]) -> tuple[IO[str] | None, int]:
    """What this process reads from, and the descriptor that the program writes to."""
    if wanted == subprocess.PIPE:
        reading, writing = os.pipe()
        pipes.append(writing)
        return os.fdopen(reading, "r"), writing
    if wanted is None:
        return None, own
    assert not isinstance(wanted, int)
    return None, wanted.fileno()


@final
class _Server:
    """The owner's side of the server."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-W", "error", "-m", "tests.forkserver", str(theirs.fileno())]
        # A session of its own, so that a Ctrl-C in the terminal ends the owner, which then ends the server.
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self.owner = os.getpid()
        atexit.register(self.close)

    def start(self, request: dict[str, Any], outputs: list[int]) -> int:
        """Starts a program; its process id."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], outputs)
            while True:
                answer = self._receive(HANG)
                assert answer is not None, "the fork server does not answer"
                if "started" in answer:
                    return int(answer["started"])

    def ended(self, pid: int, timeout: float | None) -> int | None:
        """The exit code of a program; None when it still runs after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                while pid not in self._codes and self._receive(0) is not None:
                    pass
                if pid in self._codes:
                    return self._codes.pop(pid)
            if deadline is not None and time.monotonic() >= deadline:
                return None
            select.select([self._socket], [], [], 0.05)  # another thread may receive what this one waits for

    def _receive(self, timeout: float) -> dict[str, int] | None:
        if not select.select([self._socket], [], [], timeout)[0]:
            return None
        message = self._socket.recv(MESSAGE)
        assert message, "the fork server has ended"
        answer: dict[str, int] = json.loads(message)
        if "ended" in answer:
            self._codes[answer["ended"]] = answer["code"]
        return answer

    def close(self) -> None:
        """Ends the server, and what it started."""
        if self.owner == os.getpid():
            self._socket.close()
            self._process.wait()


_servers: list[_Server] = []
_starting = threading.Lock()


def _server() -> _Server:
    with _starting:
        if not _servers or _servers[0].owner != os.getpid():
            _servers[:] = [_Server()]
        return _servers[0]


# The server's side.


def _serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Forks a child for each request.

    Returns the request and its descriptors in the child, None in the server at its end.
    """
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([channel.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(channel, running)
        if channel.fileno() in ready:
            message, outputs, _, _ = socket.recv_fds(channel, MESSAGE, 2)
            if not message:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                return None
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                os.close(wake)
                os.close(waker)
                return json.loads(message), outputs
            running.add(pid)
            channel.send(json.dumps({"started": pid}).encode())
            for descriptor in outputs:
                os.close(descriptor)


def _reap(channel: socket.socket, running: set[int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        running.discard(pid)
        with suppress(OSError):  # the owner is gone, which `channel` says next
            channel.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(request: dict[str, Any], outputs: list[int], base: list[str]) -> None:
    """Makes this forked process look like a fresh interpreter, and runs the program."""
    import jax

    _call_it("python")
    if request["new_session"]:
        os.setsid()
    for usual in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
        signal.signal(usual, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(outputs, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for name in JAX_SETTINGS:
        if name in os.environ:
            value = os.environ[name]
            jax.config.update(name.lower(), int(value) if value.isdecimal() else value)
    faulthandler.enable()
    os.environ["PYTHONFAULTHANDLER"] = "1"  # for the interpreters that the program starts
    warnings.simplefilter("error")

    kind, *further = request["arguments"]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    first = "" if kind in ("-c", "-m") else str(Path(kind).parent)
    sys.path[:] = [first, *paths, *base]
    if kind == "-c":
        sys.argv[:] = ["-c", *further[1:]]
        main = sys.modules["__main__"].__dict__
        for name in [name for name in main if not name.startswith("__")]:
            del main[name]
        exec(compile(further[0], "<string>", "exec"), main)
    elif kind == "-m":
        sys.argv[:] = further
        runpy.run_module(further[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [kind, *further]
        runpy.run_path(kind, run_name="__main__")


def _call_it(name: str) -> None:
    with suppress(OSError):  # there is no such file outside Linux
        Path("/proc/self/comm").write_text(name)


def _main(descriptor: int) -> None:
    _call_it(NAME)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # see tests/stacks.py
    base = [path for path in sys.path if path not in ("", str(ROOT))]
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # what every child shares stays shared: no collection of a child looks at it
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process of several threads can't be forked safely"
    with socket.socket(fileno=descriptor) as channel:
        asked = _serve(channel)
    if asked is not None:
        _become(*asked, base)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
