"""`loadax env`: show versions, devices and limits, to be pasted into an issue.

Shows no host name, user name, path, URL or password: settings of the
environment are shown by name, and by value only where that is a plain word,
number or flag.

examples:
  loadax env
  loadax env --json > env.json
  loadax env --no-devices
      for a host whose accelerator belongs to a run

Devices are asked for in a process of their own, which is ended after a while
(--timeout). Exit code: 0, also if something is missing or does not answer.
"""

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import loadax
from loadax.cli.command import add_command, add_value
from loadax.cli.terminal import show
from loadax.core.formatting import size_text
from loadax.core.memory import machine_memory
from loadax.loader.metrics.stats import usable_cores

REQUIRED = (
    "jax",
    "jaxlib",
    "numpy",
    "array-record",
    "cloudpickle",
    "grain",
    "obstore",
    "tensorstore",
    "tqdm",
)
"""Packages that loadax depends on, and JAX's own."""

OPTIONAL = (
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "libtpu",
    "av",
    "datasets",
    "distributed",
    "executorlib",
    "flax",
    "google-crc32c",
    "h5py",
    "opencv-python-headless",
    "orbax-checkpoint",
    "pillow",
    "prometheus-client",
    "protobuf",
    "pyarrow",
    "ray",
    "simplejpeg",
    "soundfile",
    "torch",
    "xarray",
    "zarr",
)
"""Packages of the extras, and others that change what loadax does; shown where they are installed."""

# Runs in a process of its own: a runtime may hang, or end the process.
_DEVICES = """
import collections, json, jax
kinds = collections.Counter(device.device_kind for device in jax.devices())
print(json.dumps({
    "backend": jax.default_backend(),
    "kinds": dict(kinds),
    "processes": jax.process_count(),
}))
"""
_SETTINGS = re.compile(
    r"(JAX|XLA|LIBTPU|TPU|CUDA_VISIBLE|NCCL|MALLOC|OMP|OPENBLAS|TENSORSTORE|LOADAX"
    r"|AWS|GOOGLE|AZURE|CLOUDFLARE|HF)_\w+"
)
_PRIVATE = re.compile(
    "TOKEN|KEY|SECRET|PASS|ACCOUNT|PROFILE|ADDRESS|HOST|ID$|NAME|BUCKET"
)
_PLAIN = re.compile(r"[\w.,=\- ]{0,200}")
_HIDDEN = "(set)"
_MISSING = "missing"


def add(commands: Any) -> None:
    """Adds `env` to the commands."""
    command = add_command(commands, run)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "--no-devices",
        action="store_true",
        help="don't ask JAX for its devices, which may claim them",
    )
    add_value(
        command,
        "--timeout",
        "SECONDS",
        "how long JAX may take to list its devices (120)",
        float,
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    found = environment()
    if not options.no_devices:
        found["devices"] = devices(options.timeout or 120)
    if options.json:
        show(json.dumps(found, indent=2))
        return 0
    for topic, values in found.items():
        show(f"{topic}:")
        for name, value in values.items():
            show(f"  {name}: {value}")
    return 0


def environment() -> dict[str, dict[str, str]]:
    """What this process runs on, by topic and name, without what identifies a person or a machine."""
    return {
        "versions": _versions(),
        "platform": _platform(),
        "limits": _limits(),
        "settings": _settings(),
    }


def devices(timeout: float) -> dict[str, str]:
    """JAX's devices, as a new process sees them.

    Args:
        timeout: Seconds after which the process is ended.
    """
    command = [sys.executable, "-c", _DEVICES]
    try:
        ended = subprocess.run(  # noqa: S603 - a constant
            command, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer of JAX within {timeout:g} s"}
    if ended.returncode:
        kind = ended.stderr.strip().rpartition("\n")[2].partition(":")[0]
        return {"error": f"exit code {ended.returncode} ({kind})"}
    answer = json.loads(ended.stdout.splitlines()[-1])
    kinds = [f"{count} x {kind}" for kind, count in answer["kinds"].items()]
    return {
        "backend": answer["backend"],
        "devices": ", ".join(kinds),
        "processes": str(answer["processes"]),
    }


def _versions() -> dict[str, str]:
    found = {"loadax": loadax.__version__ + _origin()}
    for name in REQUIRED:
        found[name] = _version(name) or _MISSING
    for name in OPTIONAL:
        installed = _version(name)
        if installed:
            found[name] = installed
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _origin() -> str:
    """How loadax was installed, with the commit where pip knows it."""
    try:
        text = distribution("loadax").read_text("direct_url.json")
    except PackageNotFoundError:
        return " (not installed)"
    if text is None:
        return ""
    origin = json.loads(text)
    commit = origin.get("vcs_info", {}).get("commit_id")
    if commit:
        return f" (commit {commit[:12]})"
    if origin.get("dir_info", {}).get("editable"):
        return " (editable)"
    return ""


def _platform() -> dict[str, str]:
    gil = "with the GIL"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        gil = "free-threaded"
    python = f"{platform.python_implementation()} {platform.python_version()}, {gil}"
    found = {
        "python": python,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
    }
    library = " ".join(platform.libc_ver())
    if library.strip():
        found["libc"] = library
    return found


def _limits() -> dict[str, str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = {
        "cores": f"{usable_cores()} usable of {os.cpu_count()}",
        "memory": size_text(machine_memory()),
        "open files": f"{soft} (at most {hard})",
    }
    with suppress(OSError):  # not on this system, or not in this container
        quota = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        found["cpu quota of the container"] = "/".join(quota)
    folders = {
        "shared memory": "/dev/shm",  # noqa: S108 - only measured
        "temporary files": gettempdir(),
    }
    for name, folder in folders.items():
        with suppress(OSError):
            usage = shutil.disk_usage(folder)
            free = size_text(usage.free)
            found[name] = f"{free} free of {size_text(usage.total)}"
    return found


def _settings() -> dict[str, str]:
    names = sorted(name for name in os.environ if _SETTINGS.fullmatch(name))
    return {name: _shown(name, os.environ[name]) for name in names}


def _shown(name: str, value: str) -> str:
    if _PRIVATE.search(name) or not _PLAIN.fullmatch(value):
        return _HIDDEN
    return value
