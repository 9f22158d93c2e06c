"""`loadax env`: what an issue needs, and nothing that identifies a person or a machine."""

import getpass
import json
import re
import socket
import sys
import tomllib
from pathlib import Path

import pytest

import loadax
from loadax.cli import env
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]


def test_env_shows_versions_limits_and_settings(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_max_hlo_modules=3")
    outcome = command("env", "--no-devices", "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 0
    assert [*found] == ["versions", "platform", "limits", "settings"]
    assert found["versions"]["loadax"].startswith(loadax.__version__)
    assert found["versions"]["jax"] == sys.modules["importlib.metadata"].version("jax")
    assert found["settings"]["XLA_FLAGS"] == "--xla_dump_max_hlo_modules=3"
    assert re.fullmatch(r"\d+ usable of \d+", found["limits"]["cores"])
    text = command("env", "--no-devices").out
    assert f"  memory: {found['limits']['memory']}\n" in text


def test_env_shows_nothing_private(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "abcdefsecret1",
        "HF_TOKEN": "abcdefsecret2",
        "AWS_ENDPOINT_URL": "http://me:abcdefsecret3@store",
        "JAX_COMPILATION_CACHE_DIR": "/home/abcdefsecret4/cache",
        "JAX_COORDINATOR_ADDRESS": "abcdefsecret5",
        "TENSORSTORE_CA_BUNDLE": "~/abcdefsecret6",
        "MY_PASSWORD": "abcdefsecret7",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    text = command("env", "--no-devices").out
    assert "abcdefsecret" not in text
    assert "MY_PASSWORD" not in text
    assert "  HF_TOKEN: (set)\n" in text
    words = set(re.split(r"[\s:()]+", text))
    assert {str(Path.home()), socket.gethostname()} & words == set()
    assert f"/{getpass.getuser()}/" not in text


def test_env_names_the_packages_that_are_missing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    versions = json.loads(command("env", "--no-devices", "--json").out)["versions"]
    assert versions["grain"] == "missing"
    assert versions["loadax"] == f"{loadax.__version__} (not installed)"
    assert "zarr" not in versions


def test_env_asks_for_the_packages_that_loadax_depends_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {re.split(r"[<>=;\[ ]", line)[0] for line in project["dependencies"]}
    assert needed | {"jaxlib"} == set(env.REQUIRED)
    extras = "audio", "dask", "executorlib", "huggingface", "images", "orbax", "parquet", "prometheus", "tfrecord"
    lines = [line for extra in (*extras, "ray", "video") for line in project["optional-dependencies"][extra]]
    assert {re.split(r"[<>=;\[ ]", line)[0] for line in lines} <= set(env.OPTIONAL)


@pytest.mark.processes
def test_env_lists_devices_from_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.devices(300) == {"backend": "cpu", "devices": "8 x cpu", "processes": "1"}
    assert env.devices(0.001) == {"error": "no answer of JAX within 0.001 s"}
    monkeypatch.setenv("JAX_PLATFORMS", "nothing")
    assert env.devices(300) == {"error": "exit code 1 (RuntimeError)"}
