"""Texts of `--executor`: what each makes, and what is refused."""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from loadax.cli import executors
from loadax.cli.executors import executor_maker
from loadax.errors import ArgumentError, UnsupportedError
from tests.servers.loopback import free_port


def test_threads_and_processes_are_made_anew_in_each_call() -> None:
    for text, kind in {"threads:3": ThreadPoolExecutor, "processes:2": ProcessPoolExecutor}.items():
        make = executor_maker(text)
        with make() as first, make() as second:
            assert isinstance(first, kind)
            assert first is not second
            assert vars(first)["_max_workers"] == int(text[-1])


@pytest.mark.parametrize("text", ["", "8", "processes", "processes:", "processes:0", "threads:-1", "threads:2.5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"is not an executor; pass processes:8, threads:8, or dask:tcp"
    ):
        executor_maker(text)


@pytest.mark.parametrize("text", ["dask", "dask:", "dask:host", "dask:8786", "dask:tcp://host", "spark:tcp://host:1"])
def test_incomplete_addresses_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not an executor"):
        executor_maker(text)


def test_unreachable_dask_scheduler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_CONNECT", 0.2)
    address = f"tcp://127.0.0.1:{free_port()}"
    make = executor_maker(f"dask:{address}")
    with pytest.raises(ArgumentError, match=f"--executor dask:{address}: no Dask scheduler answers there") as caught:
        make()
    assert "start one by `dask scheduler`" in str(caught.value)


def test_missing_distributed_names_package_and_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    make = executor_maker("dask:tcp://127.0.0.1:8786")
    with pytest.raises(UnsupportedError, match=r"needs distributed, .*: pip install distributed, or, .*'\.\[dask\]'"):
        make()
