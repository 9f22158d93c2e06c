"""Texts of `--executor`: what each makes, and what is refused."""

import argparse
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from loadax.cli.executor_option import executor_maker
from loadax.errors import ArgumentError


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
        argparse.ArgumentTypeError, match=r"is not an executor; pass processes:8, threads:8, or cluster:pool"
    ):
        executor_maker(text)


@pytest.mark.parametrize("text", ["dask", "dask:", "dask:tcp://host:8786", "cluster:", ":pool", "cluster:8"])
def test_what_names_no_function_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not an executor"):
        executor_maker(text)


def test_function_of_a_module_makes_the_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster44.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n\ndef pool():\n    return ThreadPoolExecutor(2)\n"
    )
    with executor_maker("cluster44:pool")() as executor:
        assert executor.submit(max, 1, 2).result() == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [("no_such_module:pool", "module no_such_module can't be imported"), ("math:pool", "has no such function")],
)
def test_a_function_that_is_missing_is_named(text: str, message: str) -> None:
    make = executor_maker(text)
    with pytest.raises(ArgumentError, match=f"--executor {text}: .*{message}"):
        make()
