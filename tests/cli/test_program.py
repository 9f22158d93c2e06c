"""`loadax` as a process: Ctrl-C, closed pipes, users' exceptions, and what a terminal must not see."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import loadax
from loadax.cli import main
from loadax.core.formatting import table
from loadax.core.progress_bar import progress_bar
from loadax.errors import SourceError
from loadax.redaction import redact
from tests.limits import HANG, until

MODULE = """
import sys
import threading
import time
from pathlib import Path
import numpy as np
import loadax

def rows(): return loadax.from_arrays({"x": np.arange(4000)})
def sleep(row):
    Path("busy").touch()
    time.sleep(10_000)
    return row
def doze(row):
    time.sleep(0.01)
    return row
def sleeping(): return rows().map(sleep)
def dozing(): return rows()[:200].map(doze)
def ignores():
    while True:
        try:
            Path("busy").touch()
            time.sleep(10_000)
        except KeyboardInterrupt:
            Path("ignored").touch()
def divide(row): return bool(1 / (START - int(row["x"])))
def group(row): return 1 // (START - int(row["x"]))
def quit(row): sys.exit(0)
def pipe(row): raise BrokenPipeError("of the user")
def shout(row): raise KeyError("\\x1b[2J http://me:SECRET@host/x")
def fails(): return {}["missing"]
def slow_filter(row):
    if not Path("fast").exists():
        time.sleep(0.003)
    return True
def dividing(): return rows().map(divide)
def quitting(): return rows().map(quit)
def piping(): return rows().map(pipe)
"""
START = 1500
PATIENT = "import sys; from loadax.cli import program; program._GRACE = 1e5; sys.exit(program.main())"
"""The command, which waits for its threads after a Ctrl-C, however long that takes."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    Path("users.py").write_text(MODULE.replace("START", str(START)))
    Path("raises.py").write_text("x = 1\nx / 0\n")
    Path("unclosed.py").write_text("x = (\n")
    Path("exits.py").write_text("raise SystemExit(0)\n")
    return tmp_path


@pytest.fixture
def silent() -> Iterator[tuple[str, threading.Event]]:
    """URL of a server that accepts connections and never answers, and an event that tells of the first one."""
    accepted, held = threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return
                accepted.set()

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", accepted
        server.shutdown(socket.SHUT_RDWR)
        thread.join(HANG)
    for connection in held:
        connection.close()


def start(*arguments: Any, code: str = "import sys; from loadax.cli import main; sys.exit(main())") -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(child: Any) -> tuple[int, list[str]]:
    err = child.communicate(timeout=HANG)[1]
    return child.returncode, err.splitlines()


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "users:sleeping", "out"),
        ("index", "users:rows", "--filter", "users:sleep", "--out", "ix"),
        ("index", "users:rows", "--split-by", "users:sleep", "--out", "ix"),
        ("inspect", "users:sleeping"),
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_interrupt_ends_a_command_whose_threads_sleep(folder: Path, arguments: tuple[str, ...]) -> None:
    child = start(*arguments)
    until((folder / "busy").exists)
    child.send_signal(signal.SIGINT)
    code, err = ended(child)
    assert (code, err[0]) == (130, "loadax: interrupted")
    same = f"loadax: to continue, run the same command: loadax {' '.join(arguments)}"
    assert all("--resume" in line or line == same for line in err[1:])
    assert (same in err) == (arguments[0] == "index")


@pytest.mark.processes
@pytest.mark.parametrize("executor", [[], ["--executor", "processes:1"]], ids=["threads", "processes"])
def test_interrupted_index_prints_the_command_that_continues_it(folder: Path, executor: list[str]) -> None:
    command = ["index", "users:rows", "--filter", "users:slow_filter", "--out", "a folder", *executor]
    child = start(*command)
    until(lambda: len([*folder.glob("a folder/*.parts/*.npz")]) > 2)
    child.send_signal(signal.SIGINT)
    code, (interrupted, kept, line) = ended(child)
    assert (code, interrupted) == (130, "loadax: interrupted")
    assert re.search(r"\d+ of \d+ parts are kept in .*parts; the same call with index=", kept)
    before = len([*folder.glob("a folder/*.parts/*.npz")])
    Path("fast").touch()
    (said,) = re.findall("loadax: to continue, run the same command: loadax (.*)", line)
    code, err = ended(start(*shlex.split(said)))
    assert (code, before > 2) == (0, True), err
    assert not [*folder.glob("a folder/*.parts")]


@pytest.mark.processes
@pytest.mark.parametrize("overwrite", [False, True])
def test_interrupted_convert_says_what_is_left(folder: Path, overwrite: bool) -> None:
    np.save("x.npy", np.arange(3))
    if overwrite:
        main(["convert", "x.npy", "out"])
    child = start("convert", "users:dozing", "out", *["--overwrite"] * overwrite, code=PATIENT)
    until(lambda: len(list(folder.glob("*out*/zarr.json"))) > overwrite)
    child.send_signal(signal.SIGINT)
    code, (interrupted, left) = ended(child)
    assert (code, interrupted) == (130, "loadax: interrupted")
    if overwrite:
        assert left == "loadax: out is unchanged: the new store is unfinished, and is deleted"
        assert loadax.from_zarr("out")[2] == 2
    else:
        assert left == "loadax: out is unfinished; resume it with resume=True, on the command line --resume"
        assert main(["convert", "users:dozing", "out", "--resume"]) == 0
        sys.modules.pop("users")


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments", [("convert", "{}/x.npy", "out"), ("verify", "{}/x.zarr"), ("inspect", "{}/x.parquet")]
)
def test_interrupt_ends_a_command_that_waits_for_a_server(
    folder: Path, silent: tuple[str, threading.Event], arguments: tuple[str, ...]
) -> None:
    child = start(*(text.format(silent[0]) for text in arguments))
    assert silent[1].wait(HANG)
    child.send_signal(signal.SIGINT)
    code, err = ended(child)
    assert (code, err[-1]) == (130, "loadax: interrupted")


@pytest.mark.processes
def test_second_interrupt_ends_at_once(folder: Path) -> None:
    child = start("convert", "users:ignores", "out", code=PATIENT)
    until((folder / "busy").exists)
    child.send_signal(signal.SIGINT)
    until((folder / "ignored").exists)
    child.send_signal(signal.SIGINT)
    hint = "loadax: pass --resume to continue a store that was begun"
    assert ended(child) == (130, ["loadax: interrupted", hint])


@pytest.mark.processes
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", [("inspect", "x.npy"), ("inspect", "nothing", "2>&1")])
def test_closed_pipe_ends_without_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], unbuffered: str
) -> None:
    np.save("x.npy", np.zeros((4, 2)))
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    reading, writing = os.pipe()
    os.close(reading)
    both = command[-1] == "2>&1"
    child = subprocess.run(
        [sys.executable, "-m", "loadax", *command[: len(command) - both]],
        stdout=writing,
        stderr=writing if both else subprocess.PIPE,
        timeout=HANG,
        check=False,
    )
    os.close(writing)
    assert not child.stderr
    assert child.returncode in ({2} if both else {0, 141})


@pytest.mark.processes
def test_full_disk_of_stdout_is_one_error(folder: Path) -> None:
    np.save("x.npy", np.zeros((4, 2)))
    with Path("/dev/full").open("w") as full:
        child = subprocess.run(
            [sys.executable, "-m", "loadax", "inspect", "x.npy"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert child.returncode == 2
    assert child.stderr == b"loadax: error: the output can't be written: No space left on device\n"


@pytest.mark.processes
def test_closed_stdout_and_stderr(folder: Path) -> None:
    np.save("x.npy", np.zeros((4, 2)))
    shell = f"{sys.executable} -m loadax inspect x.npy >&- && ! {sys.executable} -m loadax inspect nothing 2>&-"
    assert subprocess.run(shell, shell=True, capture_output=True, check=False).returncode == 0


FAILURES = {
    "filter": (("index", "users:rows", "--filter", "users:divide", "--out", "ix"), "in divide: ZeroDivisionError: "),
    "split": (("index", "users:rows", "--split-by", "users:group", "--out", "ix"), "in group: ZeroDivisionError: "),
    "map": (("convert", "users:dividing", "out"), "in divide: ZeroDivisionError: "),
    "quit": (("convert", "users:quitting", "out"), "in quit: RuntimeError: map quit "),
    "pipe": (("convert", "users:piping", "out"), "in pipe: BrokenPipeError: of the user"),
    "source": (("convert", "users:fails", "out"), "in fails: KeyError: 'missing'"),
    "import": (("inspect", "raises:data"), "in <module>: ZeroDivisionError: division by zero"),
    "syntax": (("inspect", "unclosed:data"), "unclosed.py:1: SyntaxError: '(' was never closed"),
    "exit": (("inspect", "exits:data"), "exits.py:1, in <module>: SystemExit: 0"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_exception_of_a_users_function_is_one_error_with_its_place(
    folder: Path, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    arguments, message = FAILURES[case]
    try:
        assert main(arguments) == 2
        err = capfd.readouterr().err
    finally:
        for name in ("users", "raises", "unclosed", "exits"):
            sys.modules.pop(name, None)
        sys.path.remove(str(folder))
    first = err.splitlines()[0]
    assert first.startswith(f"loadax: error: {folder}/")
    assert message in first
    assert "Traceback" not in err
    assert "/loadax/" not in err


@pytest.mark.processes
def test_exception_in_a_worker_process_is_one_error_with_its_place(folder: Path) -> None:
    child = start("convert", "users:dividing", "out", "--executor", "processes:1")
    code, err = ended(child)
    assert code == 2
    assert err[0] == f"loadax: error: {folder}/users.py:26, in divide: ZeroDivisionError: division by zero"
    assert all(line.startswith("loadax: in ") for line in err[1:-1])
    assert err[-1].startswith("loadax: out is unfinished; ")


def test_exception_of_a_function_without_python_code_names_the_row(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    np.save("x.npy", np.zeros(64))
    assert main(["index", "x.npy", "--filter", "math:factorial", "--out", "ix"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("loadax: error: TypeError: ")
    assert "loadax: in filter factorial, on row 0" in err


def test_exceptions_of_loadax_itself_keep_their_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadax.cli.verify.verify", lambda *_: [1].index(0))
    monkeypatch.setattr("loadax.cli.functions.LIBRARIES", (str(Path(__file__).parents[2]),))
    with pytest.raises(ValueError, match="not in list"):
        main(["verify", "store.zarr"])


def test_an_exception_that_an_interrupt_caused_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where a Ctrl-C strikes between the lines of `threading`, its locks raise errors of their own."""

    def measure(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()

    monkeypatch.setattr("loadax.cli.verify.verify", measure)
    assert main(["verify", "store.zarr"]) == 130
    assert capfd.readouterr().err == "loadax: interrupted\n"


SECRET = "http://me:SECRET@host/x"


@pytest.mark.parametrize(
    "arguments",
    [
        (SECRET,),
        ("inspect", "x.npy", SECRET),
        ("inspect", "x.npy", "--seq-len", SECRET),
        ("convert", "x.npy", "out", "--shards", SECRET),
        ("index", "x.npy", "--filter", f"{SECRET}:f", "--out", "ix"),
        ("index", "x.npy", "--filter", f"os:{SECRET}", "--out", "ix"),
        ("index", "users:rows", "--filter", "users:shout", "--out", "ix"),
    ],
    ids=" ".join,
)
def test_errors_show_no_secrets(folder: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    np.save("x.npy", np.zeros((4, 2)))
    try:
        code: Any = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    out, err = capfd.readouterr()
    sys.modules.pop("users", None)
    assert code == 2
    assert err
    assert "SECRET" not in out + err


NAME = "a\x1b[31m\x9b2J\r\u202eb"
SHOWN = r"a\x1b[31m\x9b2J"


def test_control_characters_are_escaped_wherever_names_are_shown(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({NAME: [1, 2, 3]}), f"{NAME}.parquet")
    zarr.create_group(f"{NAME}.zarr").create_array(NAME, data=np.zeros((3, 2)))
    Path(f"{NAME}.npy").write_bytes(b"damaged")
    for arguments in (
        ("inspect", f"{NAME}.parquet"),
        ("inspect", f"{NAME}.zarr"),
        ("inspect", f"{NAME}.npy"),
        ("inspect", f"{NAME}.unknown"),
        ("verify", f"{NAME}.zarr"),
        ("convert", f"{NAME}.zarr", f"{NAME}.out"),
    ):
        main(arguments)
        shown = "".join(capfd.readouterr())
        assert SHOWN in shown, arguments
        assert not [character for character in "\x1b\x9b\r\u202e" if character in shown], arguments


def test_control_characters_are_escaped_in_errors_tables_and_bars(capfd: pytest.CaptureFixture[str]) -> None:
    error = SourceError(f"{NAME} is damaged")
    error.add_note(NAME)
    shown = SHOWN + r"\x0d\u202eb"
    assert (str(error), error.__notes__) == (f"{shown} is damaged", [shown])
    assert table((NAME,), [(f"{NAME}\n",)]) == f"{shown}\n{shown}\\n\n"
    with progress_bar(NAME, 3, "row", wanted=True):
        pass
    assert SHOWN in capfd.readouterr().err
    assert redact("naïve “名” \udc80\tx\n") == "naïve “名” \\x80\tx\n"
