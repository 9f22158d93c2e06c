"""Worker processes in whole programs: however these are started, their functions are there.

However they end, nothing stays.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from tests.limits import ENDLESS, HANG, until

ROOT = Path(__file__).parents[2]
SIBLING = "def tripled(example):\n    return {**example, 'y': example['x'] * 3}\n"

USES = """
import sys, os
import numpy as np
from loadax import Dataloader, from_arrays, from_source
from sibling import tripled

BASE = 1000

class Mine(Exception):
    pass

class Squares:
    spec = np.int64(0)
    def __len__(self):
        return 64
    def read(self, rows):
        return shifted(rows * rows)

def shifted(rows):
    return rows + BASE

def picky(example):
    if example["x"] == 21:
        raise Mine("not that one")
    return {**example, "pid": np.int64(os.getpid())}

options = {"batch_size": 8, "num_workers": 1, "worker_type": "process"}
table = np.arange(5000)[::-1]

data = from_arrays({"x": np.arange(64)}).map(picky).map(tripled).map(lambda row: {**row, "z": table[row["x"]] + BASE})
batches = iter(Dataloader(data, **options))
batch = next(batches)
assert batch["y"].tolist() == [3 * n for n in range(8)], batch
assert batch["z"].tolist() == [5999 - n for n in range(8)], batch
assert os.getpid() not in batch["pid"].tolist()
next(batches)
try:
    next(batches)
except Mine as error:
    assert "row 21" in "".join(error.__notes__)
else:
    raise AssertionError("no error")

with iter(Dataloader(from_source(Squares()), **options)) as batches:
    assert next(batches).tolist() == [n * n + 1000 for n in range(8)]
print("ok", sys.argv[1:])
"""

START = """
import os, signal, subprocess, sys, time
import numpy as np
import psutil
from loadax import Dataloader, from_arrays

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and programs inherit that

def endless(example):
    if os.getpid() != trainer and example["x"] >= 64:
        open(os.environ["AT_WORK"], "w").close()
        while True:
            pass
    return example

def sleepy(example):
    if os.getpid() != trainer and example["x"] >= 64:
        open(os.environ["AT_WORK"], "w").close()
    time.sleep(0.005)
    return example

def ready():
    children = psutil.Process().children()
    print("ready", *[child.pid for child in children if "loadax.loader.workers.main" in child.cmdline()], flush=True)

trainer = os.getpid()
data = from_arrays({"x": np.arange(8000)})
options = {"batch_size": 8, "num_workers": 2, "worker_type": "process"}
"""

BUSY = """
batches = iter(Dataloader(data.map(endless), **options))
next(batches)
while not os.path.exists(os.environ["AT_WORK"]):
    time.sleep(0.01)
ready()
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "1"}


WAYS = {"script": ["program.py"], "module": ["-m", "program"], "command": ["-c", USES], "input": ["-"]}


@pytest.mark.parametrize("way", WAYS)
def test_functions_of_a_program_without_a_main_guard(way: str, tmp_path: Path) -> None:
    """Its flags are its own, and a module beside it can be imported."""
    (tmp_path / "sibling.py").write_text(SIBLING)
    (tmp_path / "program.py").write_text(USES)
    command = [sys.executable, "-W", "error", *WAYS[way], "--steps=3", "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), input=USES, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok ['--steps=3', '--help']\n", "")


SPAWNED = """
import dataclasses, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import numpy as np
from loadax import Dataloader, from_source

FACTOR = 3

@dataclasses.dataclass
class Reader:
    "Called like a class of loadax that a worker's main program names."
    x: np.ndarray
    y: int

class Visits:
    def __len__(self):
        return 32
    def __getitem__(self, row):
        return Reader(np.full(3, row * FACTOR, np.float32), row)

def main(example):
    return Reader(example.x * FACTOR, example.y)

def even(example):
    return example.y % 2 == 0

def pool():
    return ProcessPoolExecutor(1, get_context("spawn"))

def work(door):
    data, options = from_source(Visits()).map(main), {}
    if door == "processes":
        options = {"worker_type": "process", "num_workers": 1}
    elif door == "remote":
        options = {"remote": pool}
    else:
        data = data.filter(even, index="kept", executor=pool)
    batches = list(Dataloader(data, 8, **options))
    assert type(batches[0]) is Reader
    y = np.concatenate([batch.y for batch in batches])
    assert y.tolist() == list(range(0, 32, 2 if door == "filter" else 1)), y
    assert np.concatenate([batch.x for batch in batches])[:, 0].tolist() == (9.0 * y).tolist()
    print("right", door, __name__, flush=True)

if __name__ == "__main__":
    process = get_context(sys.argv[1]).Process(target=work, args=sys.argv[2:])
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("door", ["processes", "remote", "filter"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_code_of_a_script_reaches_workers_of_a_spawned_child(method: str, door: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SPAWNED)
    command = [sys.executable, "program.py", method, door]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"right {door} __mp_main__\n"), done.stderr


LEAVES_ITS_POOL = """
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import numpy as np
from loadax import Dataloader, from_arrays

def pool():
    return ProcessPoolExecutor(2, get_context("spawn"), initializer=time.sleep, initargs=(2,))

def work():
    batches = list(Dataloader(from_arrays(np.arange(32)), 8, remote=pool))
    print(len(batches), "batches", flush=True)

if __name__ == "__main__":
    process = get_context("spawn").Process(target=work)
    process.start()
    process.join()
    print("ended with", process.exitcode)
"""


def test_a_child_process_ends_though_its_pool_has_not_started(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LEAVES_ITS_POOL)
    command = [sys.executable, "program.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert (done.stdout, done.stderr) == ("4 batches\nended with 0\n", "")


UNGUARDED = """
import time
import numpy as np
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from loadax import Dataloader, from_arrays

pool = lambda: ProcessPoolExecutor(1, get_context("spawn"))
data = from_arrays({"x": np.arange(400)})

def good(row):
    return row["x"] % 7 == 0

GUARD
    if "DOOR" == "filter":
        print(len(data.filter(good, index="kept", executor=pool)))
    else:
        print(sum(len(batch["x"]) for batch in Dataloader(data, 40, remote=pool)))
"""


@pytest.mark.parametrize("way", ["script", "input"])
@pytest.mark.parametrize(("door", "right"), [("filter", "58"), ("remote", "400")])
def test_pool_without_a_main_guard_is_told_in_a_few_lines(door: str, right: str, way: str, tmp_path: Path) -> None:
    def run(guard: str, way: str) -> "subprocess.CompletedProcess[str]":
        program = UNGUARDED.replace("DOOR", door).replace("GUARD", guard)
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, *({"script": ["program.py"], "input": ["-"]}[way])]
        return subprocess.run(
            command,
            cwd=tmp_path,
            # without lines of marks, of which Python 3.13 has many
            env=environment() | {"PYTHONNODEBUGRANGES": "1"},
            input=program,
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )

    done = run("if True:", way)
    told = done.stderr.splitlines()
    assert len(told) <= 40, done.stderr
    assert any('put the code that runs there under `if __name__ == "__main__":`' in line for line in told) == (
        way == "script"
    )
    if way == "input":
        assert "which import the main script, <stdin>, that is no file; save the script to a file" in told[-1]
    elif door == "filter":
        assert "WorkerError: the executor has lost task " in told[-1]
        assert told[-1].endswith(
            'nothing in it prevents: put the code that runs there under `if __name__ == "__main__":`'
        )
        # Nothing tells that this one has no guard.
        told = run("print(__name__)\nif True:", way).stderr.splitlines()
        assert told[-1].startswith("loadax.errors.WorkerError: the executor has lost tasks 4 times in a row")
        assert 'under `if __name__ == "__main__":`. Or they lack memory' in told[-1]
    else:
        assert done.stdout == f"{right}\n"  # it is read here
    if way == "script":  # as it advises:
        done = run('if __name__ == "__main__":', way)
        assert (done.returncode, done.stdout) == (0, f"{right}\n"), done.stderr


FROZEN = """#!{python}
# Stands for a frozen program: whatever its arguments, it runs from the top.
import multiprocessing, os, sys
with open("starts", "a") as starts:
    starts.write(f"{{os.getpid()}} {{os.getppid()}}\\n")
if len(open("starts").readlines()) > 20:
    sys.exit("endless chain")
sys.executable = os.path.abspath(sys.argv[0])
{setting}
import numpy as np
from loadax import Dataloader
from loadax.errors import WorkerError
try:
    loader = Dataloader(np.arange(32), 8, worker_type="process", num_workers=1)
    print(sum(int(np.sum(batch)) for batch in loader), flush=True)
except WorkerError as error:
    print(error, flush=True)
"""
# By the program: name, a line of it, whether it starts itself as a worker, and part of what it prints.
APPS = {
    "frozen": ("python-app", "sys.frozen = True", False, "a frozen program or one that embeds Python"),
    "embeds Python": ("uwsgi", "", False, "a frozen program or one that embeds Python"),
    "unnoticed": ("python-app", "", True, "3 worker processes ended before they had loaded the data"),
    "frozen, with a Python": ("app", "sys.frozen = True; multiprocessing.set_executable({python!r})", False, "496"),
}


@pytest.mark.parametrize("app", APPS)
def test_a_program_that_is_no_interpreter_never_starts_itself_again_and_again(app: str, tmp_path: Path) -> None:
    name, setting, starts_itself, text = APPS[app]
    program = tmp_path / name
    program.write_text(FROZEN.format(python=sys.executable, setting=setting.format(python=sys.executable)))
    program.chmod(0o755)
    done = subprocess.run(
        [program], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert text in done.stdout.splitlines()[-1], done
    (first, _), *copies = (line.split() for line in (tmp_path / "starts").read_text().splitlines())
    assert {parent for _, parent in copies} == ({first} if starts_itself else set()), "a copy starts copies"


def test_workers_start_programs_that_use_workers(tmp_path: Path) -> None:
    """The mark of a worker process is gone once it serves."""
    program = """
import subprocess, sys
import numpy as np
from loadax import Dataloader, from_arrays
options = {"worker_type": "process", "num_workers": 1}
INNER = "import numpy as np, loadax; print(len(list(loadax.Dataloader(np.arange(8), 8, **%r))))" % options
def outer(row):
    return int(subprocess.run([sys.executable, "-c", INNER], capture_output=True, check=True).stdout)
print([batch.tolist() for batch in Dataloader(from_arrays(np.arange(1)).map(outer, spec=np.int64(0)), 1, **options)])
"""
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "program.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[[1]]\n"), done.stderr


def test_functions_of_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**environment(), "IPYTHONDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "sibling.py").write_text(SIBLING)
    v4: Any = nbformat.v4  # it has no types
    notebook = v4.new_notebook(cells=[v4.new_code_cell(each) for each in USES.split("\n\n")])
    client = NotebookClient(
        notebook, timeout=int(HANG), kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    (output,) = notebook.cells[-1].outputs
    assert output.text.startswith("ok ")


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            # What became an orphan is for the first process of the machine to bury.
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            pass
    return found


class Program:
    """A program that has begun, and its workers."""

    def __init__(self, child: subprocess.Popen[str], pids: list[int]):
        self.child, self.pids = child, pids

    def ends(self) -> tuple[int, str, str]:
        """How it ended, with nobody left: exit code and what it printed."""
        out, errors = self.child.communicate(timeout=HANG)
        until(lambda: not alive(self.pids))
        return self.child.returncode, out, errors


@contextmanager
def program(body: str, count: int = 2) -> Iterator[Program]:
    """A program of a process group of its own, from the moment at which it says that it is ready."""
    command = [sys.executable, "-W", "error", "-c", START + textwrap.dedent(body)]
    pipe: Any = subprocess.PIPE
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen(
            command,
            env={**environment(), "AT_WORK": f"{folder}/at work"},
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
            cwd=ROOT,
        ) as child,
    ):
        assert child.stdout is not None
        assert child.stderr is not None
        pids: list[int] = []
        try:
            word, *numbers = child.stdout.readline().split() or ["nothing"]
            pids = [int(number) for number in numbers]
            assert (word, len(pids)) == ("ready", count), child.stderr.read()
            yield Program(child, pids)
        finally:
            child.kill()
            for pid in alive(pids):
                os.kill(pid, signal.SIGKILL)


STARTING = "batches = iter(Dataloader(data.map(sleepy), **options))\nready()"


@pytest.mark.parametrize(
    "body", [BUSY, BUSY.replace("endless", "sleepy"), STARTING], ids=["busy", "at work", "starting"]
)
def test_program_ends_with_an_iterator_that_is_not_closed(body: str) -> None:
    with program(body) as running:
        assert running.ends() == (0, "", "")


@pytest.mark.parametrize("function", ["endless", "sleepy"])
def test_a_ctrl_c_reaches_all_and_only_the_trainer_speaks(function: str) -> None:
    body = f"""
    for step, batch in enumerate(Dataloader(data.map({function}), **options)):
        if step == 1:
            ready()
    """
    with program(body) as running:
        time.sleep(0.3)  # at any moment
        os.killpg(running.child.pid, signal.SIGINT)
        code, _, errors = running.ends()
    assert code == -signal.SIGINT
    assert errors.count("Traceback") == errors.count("KeyboardInterrupt") == 1


def test_a_ctrl_c_that_the_program_catches_and_goes_on_after() -> None:
    body = """
    batches = iter(Dataloader(data.map(sleepy), **options))
    steps = []
    try:
        for batch in batches:
            steps.append(batch["x"].tolist()[0] // 8)
            if len(steps) == 2:
                ready()
    except KeyboardInterrupt:
        first = batches.step
        steps += [next(batches)["x"].tolist()[0] // 8 for _ in range(5)]
        assert sorted(set(steps)) == list(range(steps[-1] + 1)), steps
        print("went on", flush=True)
    """
    with program(body) as running:
        time.sleep(0.3)  # at any moment
        os.killpg(running.child.pid, signal.SIGINT)
        assert running.ends() == (0, "went on\n", "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_trainer_that_is_killed_takes_its_workers_along(number: signal.Signals) -> None:
    with program(BUSY + f"time.sleep({ENDLESS})") as running:
        running.child.send_signal(number)
        code, _, errors = running.ends()
    assert (code, errors) == (-number, "")


def test_a_trainer_that_is_killed_while_a_copy_of_it_lives_on() -> None:
    """A copy by fork has the trainer's ends of all connections open."""
    body = (
        BUSY.replace("ready()", "")
        + f"""
import warnings
warnings.simplefilter("ignore")  # JAX advises against forks
child = os.fork()
if not child:
    time.sleep({ENDLESS})
    os._exit(0)
children = psutil.Process().children()
print("ready", *[each.pid for each in children if "loadax.loader.workers.main" in each.cmdline()], child, flush=True)
time.sleep({ENDLESS})
"""
    )
    with program(body, count=3) as running:
        *pids, copy = running.pids
        running.child.kill()
        until(lambda: not alive(pids))
        assert alive([copy]) == [copy]


def test_a_copy_of_the_trainer_that_ends_as_programs_do_leaves_it_its_workers() -> None:
    """It runs what was to be run at the end of the trainer. Warnings are errors here, also that of a worker's death."""
    body = """
    import warnings
    batches = iter(Dataloader(data.map(sleepy), **options))
    next(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX advises against forks
        child = os.fork()
    if not child:
        sys.exit(0)
    os.waitpid(child, 0)
    assert [next(batches)["x"].tolist()[0] for _ in range(30)] == [8 * step for step in range(1, 31)]
    ready()
    """
    with program(body) as running:
        assert running.ends() == (0, "", "")
