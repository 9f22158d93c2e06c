"""`loadax doctor`: check this machine's devices, limits and packages.

Shows the devices that JAX finds, the limits that large runs meet, and the versions of packages; says what to change.
Include its output in reports of problems.

example:
  loadax doctor

Exit code: 0 if nothing needs a change, else 1.
"""

import argparse
import json
import platform
import resource
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import loadax
from loadax.cli.options import add_command
from loadax.cli.terminal import show
from loadax.core.formatting import count_text, size_text, table
from loadax.loader.metrics.stats import usable_cores
from loadax.sources.formats import FORMATS

_NEEDS_CHANGE = 1  # exit code
_DESCRIPTORS = 4096  # enough for remote reads, worker processes and mapped files of large datasets
_MEMORY = 4 << 30  # bytes: below this, the default of prefetch_bytes and what is read crowd out training
_PACKAGES = ("jax", "jaxlib", "numpy", "tensorstore", "grain", "obstore", "cloudpickle")
_OPTIONAL = ("datasets", "protobuf", "orbax-checkpoint", "matplotlib", "prometheus-client", "shtab")


class Machine(NamedTuple):
    """What is measured. Sizes in bytes.

    Args:
        devices: Number of JAX devices of this process, by platform; None if JAX can't start.
        problem: Why JAX can't start.
        accelerators: Device files of accelerators, by the platform that JAX should have for them.
        descriptors: Soft and hard limit of open files.
        memory: Memory that is available, within the limit of the container.
        processors: Processors that this process may run on.
        quota: Processors that the container's CPU limit amounts to; None if there is no limit.
    """

    devices: dict[str, int] | None
    problem: str
    accelerators: dict[str, str]
    descriptors: tuple[int, int]
    memory: int
    processors: int
    quota: float | None


class Check(NamedTuple):
    """One line of the answer. `advice` is empty if nothing needs a change."""

    name: str
    found: str
    advice: str = ""


def add(commands: Any) -> None:
    """Adds `doctor` to the commands."""
    add_command(commands, run).add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 1 if something needs a change."""
    checks = [*check(measure()), *_packages()]
    if options.json:
        show(json.dumps([each._asdict() for each in checks], indent=2))
    else:
        rows = [("change" if each.advice else "ok", each.name, each.found) for each in checks]
        show(table(("", "check", "found"), rows).removesuffix("\n"))
        show(*(f"\n{each.name}: {each.advice}" for each in checks if each.advice))
    return _NEEDS_CHANGE if any(each.advice for each in checks) else 0


def check(machine: Machine) -> Iterator[Check]:
    """Checks what was measured."""
    if machine.devices is None:
        advice = "correct JAX_PLATFORMS, or install JAX again for this machine's accelerators"
        yield Check("devices", f"JAX can't start: {machine.problem}", advice)
    else:
        found = ", ".join(count_text(count, f"{name} device") for name, count in machine.devices.items())
        advice = "; ".join(
            f"{file} is a {name.upper()} that JAX does not use: install {_JAX[name]}, and unset JAX_PLATFORMS"
            for name, file in machine.accelerators.items()
            if name not in machine.devices
        )
        yield Check("devices", found, advice)
    soft, hard = machine.descriptors
    low = f"run `ulimit -n {min(hard, 65536)}` before the program"
    if hard < _DESCRIPTORS:
        low = "raise LimitNOFILE of the service, or pass --ulimit nofile=65536 to the container"
    yield Check("open files", f"{soft:,} (at most {hard:,})", low if soft < _DESCRIPTORS else "")
    little = "give the container more memory, or pass a smaller prefetch_bytes= to the Dataloader"
    yield Check("memory", f"{size_text(machine.memory)} available", little if machine.memory < _MEMORY else "")
    found, advice = count_text(machine.processors, "processor"), ""
    if machine.quota is not None and machine.quota < machine.processors:
        found += f", limited to {machine.quota:g}"
        advice = "the CPU limit slows down all threads at once: raise it, or pin the container to whole processors"
    yield Check("processors", found, advice)


_JAX = {"gpu": "jax[cuda13]", "tpu": "jax[tpu]"}


def measure() -> Machine:
    """Measures this machine."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (1 << 30 if limit == resource.RLIM_INFINITY else limit for limit in limits)
    found = {name: str(file) for name, file in _ACCELERATORS.items() if file.exists()}
    return Machine(*_devices(), found, (soft, hard), _available_memory(), usable_cores(), _quota())


_ACCELERATORS = {"gpu": Path("/dev/nvidia0"), "tpu": Path("/dev/accel0")}


def _devices() -> tuple[dict[str, int] | None, str]:
    try:
        import jax

        platforms = [device.platform for device in jax.local_devices()]
    except Exception as error:  # noqa: BLE001 - any failure of any plugin is the finding
        return None, " ".join(str(error).split())[:200]
    return {name: platforms.count(name) for name in dict.fromkeys(platforms)}, ""


def _available_memory() -> int:
    """Available memory in bytes, within the limit of the container."""
    lines = _read("/proc/meminfo").splitlines()
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), 1 << 62)
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    left = int(limit) - int(used) if limit.isdigit() and used.isdigit() else available
    return max(0, min(available, left))


def _quota() -> float | None:
    """Processors that the CPU limit of the container amounts to."""
    numbers = _read("/sys/fs/cgroup/cpu.max").split()
    return int(numbers[0]) / int(numbers[1]) if len(numbers) == 2 and numbers[0].isdigit() else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _packages() -> Iterator[Check]:
    yield Check("Python", f"{platform.python_version()} on {platform.platform()}")
    yield Check("loadax", loadax.__version__)
    for name in _PACKAGES:
        version = _version(name)
        yield Check(name, version or "not installed", "" if version else f"it is required: pip install {name}")
    for name in (*dict.fromkeys(package for one in FORMATS.values() for package in one.requires), *_OPTIONAL):
        yield Check(name, _version(name) or "not installed (optional)")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
