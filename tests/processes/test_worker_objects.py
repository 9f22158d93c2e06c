"""Objects that scripts define, in worker processes: open files, caches, pytree classes; scripts without streams."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forkserver import run
from tests.limits import HANG

pytestmark = pytest.mark.processes

PROCESSES = "{'worker_type': 'process', 'num_workers': 1}"

HANDLES = f"""
import sqlite3, warnings, zipfile
import h5py, jax
import numpy as np
import loadax
from loadax import Dataloader, as_dataset, from_arrays

warnings.simplefilter("ignore", ResourceWarning)

N = 24
np.arange(N, dtype=np.int32).tofile("a.bin")
with zipfile.ZipFile("a.zip", "w") as file:
    for row in range(N):
        file.writestr(str(row), str(row))
with h5py.File("a.h5", "w") as file:
    file["x"] = np.arange(N)
with sqlite3.connect("a.db") as file:
    file.execute("create table rows (x)")
    file.executemany("insert into rows values (?)", [(row,) for row in range(N)])
file.close()

def at(file, row):
    file.seek(4 * row)
    return np.frombuffer(file.read(4), np.int32)[0]

KINDS = {{
    "file": (lambda: open("a.bin", "rb"), at),
    "zip": (lambda: zipfile.ZipFile("a.zip"), lambda file, row: np.int32(file.read(str(row)))),
    "h5py": (lambda: h5py.File("a.h5"), lambda file, row: np.int32(file["x"][row])),
    "sqlite": (
        lambda: sqlite3.connect("a.db"),
        lambda file, row: np.int32(file.execute("select x from rows where rowid = ?", (row + 1,)).fetchone()[0]),
    ),
}}

class Rows:
    f, scale = None, 1
    def __init__(self, kind):
        self.open, self.at = KINDS[kind]
    def __len__(self):
        return N
    def __getitem__(self, row):
        self.f = self.f or self.open()
        return {{"x": self.at(self.f, int(row)) * self.scale}}

class InInit(Rows):
    def __init__(self, kind):
        super().__init__(kind)
        self.f = self.open()

class Wrapped(Rows):
    def __init__(self, kind):
        self.inner = Rows(kind)
    def __getitem__(self, row):
        return self.inner[row]

OPENED = {{}}

def by_global(kind):
    open_it, read = KINDS[kind]
    def example(row):
        OPENED[kind] = OPENED.get(kind) or open_it()
        return {{"x": read(OPENED[kind], int(row))}}
    return example

class Letters(Rows):
    def __init__(self):
        self.f = open("a.txt", encoding="ascii")
    def __getitem__(self, row):
        self.f.seek(row % 10)
        return {{"x": np.int32(self.f.read(1)) + row // 10 * 10}}

numbers = from_arrays(np.arange(N))
with open("a.txt", "w") as text:
    text.write("0123456789")
spec = {{"x": jax.ShapeDtypeStruct((), np.int32)}}
tries, scale = {{}}, {{}}
for kind in KINDS:
    tries[f"{{kind}} of a dataset"] = Rows(kind)
    tries[f"{{kind}} of a dataset in another"] = Wrapped(kind)
    tries[f"{{kind}} of a map"] = numbers.map(Rows(kind).__getitem__)
    tries[f"{{kind}} of a map with spec"] = numbers.map(Rows(kind).__getitem__, spec=spec)
    tries[f"{{kind}} of a global"] = numbers.map(by_global(kind))
for kind in ("file", "zip"):
    tries[f"{{kind}} opened in __init__"] = InInit(kind)
tries["text opened in __init__"] = Letters()
loader = Dataloader(loadax.zip({{name: as_dataset(data) for name, data in tries.items()}}), 8, **{PROCESSES})
loader[1]  # reads here, too
tries["sqlite of a dataset"].scale = scale["sqlite of a dataset"] = 3  # what workers get is of now
for step, batch in enumerate(loader):
    for name, leaf in batch.items():
        wanted = [scale.get(name, 1) * row for row in range(8 * step, 8 * step + 8)]
        assert leaf["x"].tolist() == wanted, (name, leaf)
print(len(tries))
"""

ZOO = f"""
import dataclasses, functools
import jax
import numpy as np
import loadax
from loadax import Dataloader, from_arrays, from_source

@functools.lru_cache(maxsize=7, typed=True)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

@functools.cache
def table():
    return np.arange(100) * 2

class Methods:
    @functools.lru_cache
    def cached(self, value):
        return value * 5
    def called(self, value):
        return {{"x": value["x"] * self.five}}
    @functools.cached_property
    def five(self):
        return 5

@jax.tree_util.register_pytree_node_class
class State:
    def __init__(self, x, aux):
        self.x, self.aux = x, aux
    def tree_flatten(self):
        return (self.x,), self.aux
    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children, aux)

class Items:
    def __init__(self, kind):
        self.kind = kind
    def __len__(self):
        return 16
    def __getitem__(self, row):
        return self.kind(np.int64(row * 5), "aux")

@functools.singledispatch
def fivefold(value):
    raise TypeError(value)

@fivefold.register
def _(value: np.ndarray):
    return value * 5

@fivefold.register(list)
def _(value):
    return fivefold(np.array(value))

methods = Methods()
data = from_arrays({{"x": np.arange(16)}})
CASES = {{
    "lru_cache": data.map(lambda row: {{"x": row["x"] * fibonacci(int(row["x"] * 0) + 5)}}),
    "lru_cache in a default": data.map(lambda row, f=fibonacci: {{"x": row["x"] * f(5)}}),
    "cache": data.map(lambda row: {{"x": table()[row["x"]] // 2 * 5}}),
    "singledispatch": data.map(lambda row: {{"x": fivefold([row["x"]])[0]}}),
    "method with lru_cache": data.map(lambda row: {{"x": methods.cached(row["x"])}}),
    "method with cached_property": data.map(lambda row: methods.called(row)),
    "pytree class between maps": data.map(lambda row: State(row["x"], "aux")).map(lambda s: {{"x": s.x * 5}}),
    "pytree class of rows": from_source(Items(State)).map(lambda row: {{"x": row.x}}),
}}
batches = list(Dataloader(loadax.zip(CASES), 8, **{PROCESSES}))
for name in CASES:
    leaves = [jax.tree.leaves(batch[name])[0] for batch in batches]
    assert np.concatenate(leaves).tolist() == [5 * row for row in range(16)], (name, leaves)
print(len(CASES))
"""


ROWS = f"""
import dataclasses, functools
import equinox
import flax.struct
import jax
import numpy as np
from jaxtyping import Float, jaxtyped
from loadax import Dataloader, from_source

@dataclasses.dataclass
class Checks:
    x: np.ndarray
    y: int
    def __post_init__(self):
        if self.x.shape != (3,):
            raise ValueError(f"x has shape {{self.x.shape}}")

@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Converts:
    x: np.ndarray
    y: int
    def __post_init__(self):
        object.__setattr__(self, "x", np.asarray(self.x, np.float32))
        object.__setattr__(self, "y", int(self.y))

@jaxtyped(typechecker=lambda function: function)  # keeps a weak reference
@dataclasses.dataclass
class Typed:
    x: Float[np.ndarray, "3"]
    y: int

class Module(equinox.Module):
    x: np.ndarray
    y: int
    unit: str = equinox.field(static=True, default="m")
    def norm(self):
        return self.x.sum()

class Child(Module):
    z: float = equinox.field(converter=float, default=2)

class OwnInit(equinox.Module):
    x: np.ndarray
    y: int
    def __init__(self, x, y):
        self.x, self.y = x, y

class Node(flax.struct.PyTreeNode):
    x: np.ndarray
    y: int

class Rows:
    def __init__(self, kind):
        self.kind = kind
    def __len__(self):
        return 16
    def __getitem__(self, row):
        return self.kind(x=np.full(3, row, np.float32), y=row)

def same(row):
    assert type(row.x) is np.ndarray
    return row

KINDS = Checks, Converts, Typed, Module, Child, OwnInit, Node
for kind in KINDS:
    for options in ({{"num_workers": 0}}, {{"num_workers": 2}}, dict({PROCESSES})):
        batches = list(Dataloader(from_source(Rows(kind)).map(same).shuffle(0), 8, **options))
        assert type(batches[0]) is kind
        y = np.concatenate([batch.y for batch in batches])
        assert sorted(y.tolist()) == list(range(16))
        assert all(isinstance(batch.x, jax.Array) for batch in batches)
        assert (np.concatenate([batch.x for batch in batches]) == y[:, None]).all()
        if kind is Child:
            assert [batch.z.shape for batch in batches] == [(8,), (8,)]
print(len(KINDS))
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [(HANDLES, "23"), (ZOO, "8"), (ROWS, "7")],
    ids=["handles", "caches and pytrees", "rows that check"],
)
def test_objects_of_a_script_work_in_worker_processes(program: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    done = run([str(tmp_path / "program.py")], cwd=tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, said, "")


CLOSED = {
    "None": "sys.stdout = sys.stderr = None",
    "closed": "sys.stdout.close(); sys.stderr.close()",
    "descriptors": "sys.stdout = sys.stderr = None; os.closerange(0, 3)",
}

DAEMON = f"""
import os, sys
import jax
import numpy as np
from loadax import Dataloader, from_arrays

result = open("result", "w")
trainer = os.getpid()

def says(row):
    if os.getpid() != trainer:
        print("said")
        os.write(2, b"written")
    return row + 1

def main():
    got = np.concatenate([*Dataloader(from_arrays(np.arange(64)).map(says), 8, **{PROCESSES})])
    result.write(str((got == np.arange(64) + 1).all()))
    result.close()
"""


@pytest.mark.parametrize("how", CLOSED)
def test_programs_without_standard_streams_read_in_worker_processes(how: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{DAEMON}\n{CLOSED[how]}\nmain()\nos._exit(0)\n")
    done = run([str(tmp_path / "program.py")], cwd=tmp_path)
    assert (tmp_path / "result").read_text() == "True", done.stderr


TRAINS = f"""
import numpy as np
from loadax import Dataloader, from_arrays

def plus_one(row):
    return row + 1

GUARD
    loader = Dataloader(from_arrays(np.arange(64)).map(plus_one), 8, **{PROCESSES})
    print("total", sum(int(batch.sum()) for batch in loader))
"""


def test_module_that_trains_when_imported_ends_in_one_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "trains.py").write_text(TRAINS.replace("GUARD", "if True:"))
    done = run(["-c", "import trains"], cwd=tmp_path)
    assert done.returncode == 1
    told = done.stderr[done.stderr.rindex("loadax.errors.WorkerError: ") :]
    assert told.startswith("loadax.errors.WorkerError: the module trains iterates over a Dataloader with worker_type=")
    assert '`if __name__ == "__main__":`, and run it as `python -m trains`' in told
    # As it advises:
    (tmp_path / "trains.py").write_text(TRAINS.replace("GUARD", 'if __name__ == "__main__":'))
    assert run(["-m", "trains"], cwd=tmp_path).stdout == "total 2080\n"


SUSPENDED = """
import numpy as np
import loadax

def generator():
    with iter(loader) as batches:
        yield from batches

loader = loadax.Dataloader(np.arange(640), 8, num_epochs=3, worker_type=WORKER_TYPE, num_workers=1)
left, whole, around = loader.epochs(0), loader.epochs(0), generator()
epoch = next(left)
next(epoch), list(next(whole)), next(around)
"""


BAR = """
import os
import numpy as np
import loadax

loader = loadax.Dataloader(np.arange(640), 8, worker_type=WORKER_TYPE, num_workers=1)
bar = loadax.progress(loader, file=open(os.devnull, "w"))
next(bar)
"""


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("program", [SUSPENDED, BAR], ids=["generators", "progress"])
def test_loops_that_are_suspended_at_exit_are_quiet(program: str, worker_type: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program.replace("WORKER_TYPE", repr(worker_type)))
    command = [sys.executable, str(tmp_path / "program.py")]  # a fork of the test's server does not clear modules
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


SEEDS = f"""
import os, random
import numpy as np
from loadax import Dataloader, from_arrays

def draw(row):
    return {{"x": np.array([random.getrandbits(30), np.random.randint(1 << 30)]), "pid": np.int32(os.getpid())}}

data = from_arrays({{"x": np.arange(2)}}).map(draw, spec={{"x": np.zeros(2, int), "pid": np.int32(0)}})
first = []
for _ in range(2):  # two workers, one after the other
    with Dataloader(data, 1, shard_index=0, shard_count=1, **{PROCESSES}).host_batches() as batches:
        first.append([next(batches)["x"].tolist(), next(batches)["x"].tolist()])
assert first[0] == first[1] and first[0][0] != first[0][1], first
"""


def test_global_generators_of_worker_processes_are_alike(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SEEDS)
    done = run([str(tmp_path / "program.py")], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
