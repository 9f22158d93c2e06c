"""`loadax doctor`: what it finds, and what it advises."""

import json
from typing import Any

import pytest

from loadax.cli import doctor, main
from loadax.cli.doctor import Machine, check

GOOD = Machine({"cpu": 8}, "", {}, (20_000, 20_000), 16 << 30, 8, None)


def test_this_machine(capsys: Any) -> None:
    assert main(["doctor", "--json"]) in (0, 1)
    found = {each["name"]: each["found"] for each in json.loads(capsys.readouterr().out)}
    assert found["devices"] == "8 cpu devices"
    assert {"open files", "memory", "processors", "jax", "pyarrow"} <= set(found)


def test_doctor_without_advice(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(each.advice for each in check(GOOD))
    monkeypatch.setattr(doctor, "measure", lambda: GOOD)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split(maxsplit=2) == ["ok", "devices", "8 cpu devices"]
    monkeypatch.setattr(doctor, "measure", lambda: GOOD._replace(memory=1 << 30))
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "change  memory" in shown
    assert "\nmemory: give the container more memory" in shown


@pytest.mark.parametrize(
    ("change", "name", "advice"),
    [
        ({"devices": None, "problem": "no plugin"}, "devices", "correct JAX_PLATFORMS"),
        (
            {"accelerators": {"gpu": "/dev/nvidia0"}},
            "devices",
            "/dev/nvidia0 is a GPU that JAX does not use: install jax",
        ),
        ({"descriptors": (1024, 1 << 20)}, "open files", "run `ulimit -n 65536` before"),
        ({"descriptors": (1024, 5000)}, "open files", "run `ulimit -n 5000` before"),
        ({"descriptors": (1024, 2048)}, "open files", "raise LimitNOFILE"),
        ({"quota": 2.5}, "processors", "raise it, or pin"),
    ],
)
def test_doctor_advice(change: dict[str, Any], name: str, advice: str) -> None:
    wrong = [each for each in check(GOOD._replace(**change)) if each.advice]
    assert [each.name for each in wrong] == [name]
    assert advice in wrong[0].advice


def test_an_accelerator_that_is_used() -> None:
    assert not any(
        each.advice for each in check(GOOD._replace(devices={"gpu": 8}, accelerators={"gpu": "/dev/nvidia0"}))
    )
