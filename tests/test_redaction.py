"""Passwords, tokens and signatures of URLs: in no error, cause, note, log, repr, trace, explanation or output."""

import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.cli.program import main
from loadax.errors import LoadaxError, SourceError
from loadax.files import kvstore, remote
from loadax.redaction import redact
from tests.servers.loopback import DeadPort
from tests.servers.ranges import RangeServer

pytest_plugins = ["tests.servers.fixtures"]

SECRETS = ("SECRETPW", "SECRETUSER", "SECRETSIG", "SECRETKEY", "SECRETOTHER", "SECRETTAIL")
QUERY = (
    "token=SECRETSIG&X-Amz-Signature=SECRETSIG%2Fa&X-Amz-Credential=SECRETKEY&"
    "key=SECRETKEY&anything=SECRETOTHER&version=2"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host/a.npy", "http://host/a.npy"),
        ("http://u:p@host:80/a", "http://…@host:80/a"),
        ("http://u:p@ss@host/a", "http://…@host/a"),
        ("s3://KEY:SECRET@bucket/a|zip:", "s3://…@bucket/a|zip:"),
        ("https://h/a?sig=x&version=3, bytes 0 to 3", "https://h/a?sig=…&version=3, bytes 0 to 3"),
        ("https://h/a?X-Amz-Signature=x#f=y: gone", "https://h/a?X-Amz-Signature=…#f=…: gone"),
        ("https://h/a%3Fsig%3Dx%26b%3Dy", "https://h/a%3Fsig%3D…%26b%3D…"),
        ("https://h/a?baretoken", "https://h/a?…"),
        ("https://h/a?sig=x|zip:b/", "https://h/a?sig=…|zip:b/"),
        ("two: http://a:b@c/d and 'http://e?f=g'", "two: http://…@c/d and 'http://e?f=…'"),
        ("headers: ['Authorization: Bearer abc']", "headers: ['Authorization: …']"),
        ("what is a?b=c of me@home", "what is a?b=c of me@home"),
        ("/local/a?b=c", "/local/a?b=c"),
    ],
)
def test_what_is_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


def check(text: str) -> None:
    assert not [secret for secret in SECRETS if secret.lower() in text.lower()], text


def secret_url(base: str, name: str) -> str:
    scheme, _, rest = base.partition("://")
    return f"{scheme}://SECRETUSER:SECRETPW@{rest.rstrip('/')}/{name}?{QUERY}"


OPENERS: dict[str, Callable[[Callable[[str], str]], Any]] = {
    "npy": lambda url: loadax.from_npy(url("a.npy")),
    "npy tree": lambda url: loadax.from_npy({"x": url("a.npy"), "y": url("b.npy")}),
    "zarr": lambda url: loadax.from_zarr(url("a.zarr")),
    "zarr variables": lambda url: loadax.from_zarr(url("a.zarr"), variables=["x"]),
    "zip": lambda url: loadax.from_zarr(url("a.zip") + "|zip:"),
    "tokens": lambda url: loadax.from_tokens(url("a.bin"), 8, dtype="uint16"),
    "tokens without dtype": lambda url: loadax.from_tokens(url("a.bin"), 8),
    "token folder": lambda url: loadax.from_tokens(url("a/").partition("?")[0], 8, dtype="uint16"),
    "token pattern": lambda url: loadax.from_tokens(url("*.bin"), 8, dtype="uint16"),
    "megatron": lambda url: loadax.from_tokens(url("a.idx"), 8),
    "documents": lambda url: loadax.from_documents(url("a.bin")),
    "offsets": lambda url: loadax.from_documents(np.arange(4), url("a.npy")),
    "images": lambda url: loadax.from_images(url("photos")),
    "array_record": lambda url: loadax.from_array_record(url("a.array_record")),
    "tensorstore url": lambda url: loadax.from_tensorstore(url("a.zarr") + "|zarr3:"),
    "tensorstore": lambda url: loadax.from_tensorstore({"driver": "zarr3", "kvstore": url("a.zarr/")}),
    "tensorstore base_url": lambda url: loadax.from_tensorstore(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "http", "base_url": url("a.zarr/"), "headers": ["Authorization: Bearer SECRETKEY"]},
        }
    ),
    "no such driver": lambda url: loadax.from_tensorstore({"driver": "nonsense", "kvstore": url("a.zarr/")}),
    "write": lambda url: loadax.write_zarr(np.arange(4), url("a.zarr"), progress=False),
    "overwrite": lambda url: loadax.write_zarr(np.arange(4), url("a.zarr"), overwrite=True, progress=False),
    "cache": lambda url: loadax.from_arrays(np.arange(4)).cache(url("a.zarr"), progress=False),
    "filter index": lambda url: loadax.from_arrays(np.arange(4)).filter(bool, index=url("a.idx")),
    "pack index": lambda url: loadax.from_source([np.arange(4)]).pack(4, index=url("a")),
    "disk cache": lambda url: loadax.from_npy("http://127.0.0.1:1/a.npy", cache=url("a")),
    "exclude": lambda url: loadax.from_arrays(np.arange(4)).exclude(url("a.npy")),
    "a path as data": lambda url: loadax.Dataloader(url("a.npy"), batch_size=8),
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("scheme", ["http", "nonsense"])
def test_no_opener_shows_them(
    opener: str,
    scheme: str,
    dead: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kvstore, "BACKOFF", {"max_retries": 0})
    for module in (kvstore, remote):
        monkeypatch.setattr(module, "NOTICE", 1e-4)  # says at once that it waits
    caplog.set_level(logging.DEBUG)
    with pytest.raises(LoadaxError) as caught:
        OPENERS[opener](lambda name: secret_url(dead.replace("http", scheme), name))
    check("".join(traceback.format_exception(caught.value)))
    check(repr(caught.value))
    check(caplog.text)
    check("".join(capfd.readouterr()))


@pytest.mark.parametrize("command", ["inspect", "verify", "convert"])
def test_no_command_shows_them(
    command: str, dead: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(kvstore, "BACKOFF", {"max_retries": 0})
    for name in ("a.npy", "a.zarr"):
        more = [str(tmp_path / "out")] if command == "convert" else []
        try:
            main([command, secret_url(dead, name), *more])
        except SystemExit as ended:
            assert ended.code  # noqa: PT017 - an option that the command does not have
    out = "".join(capfd.readouterr())
    assert "127.0.0.1" in out
    check(out)


@pytest.fixture
def dead() -> Iterator[str]:
    """A URL where nobody listens."""
    port = DeadPort()
    yield port.url
    port.close()


class TestDataThatIsRead:
    @pytest.fixture
    def server(self, range_server: RangeServer, tmp_path: Path) -> RangeServer:
        np.save(tmp_path / "a.npy", np.arange(64, dtype=np.int32))
        np.arange(1000, dtype=np.uint16).tofile(tmp_path / "a.bin")
        loadax.write_zarr({"x": np.arange(64, dtype=np.int32)}, tmp_path / "a.zarr", progress=False)
        return range_server

    def test_shows_none(self, server: RangeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        opened = {
            "npy": loadax.from_npy({"x": secret_url(server.url, "a.npy")}),
            "tokens": loadax.from_tokens(secret_url(server.url, "a.bin"), 8, dtype="uint16"),
            "documents": loadax.from_documents(
                secret_url(server.url, "a.bin"), offsets=np.arange(0, 1001, 10), dtype="uint16"
            ).pack(16),
        }
        for name, dataset in opened.items():
            loader = loadax.Dataloader(dataset, batch_size=8, num_epochs=1)
            next(iter(loader))
            texts = {
                "repr": repr(dataset),
                "source": repr(dataset.source),
                "loader": repr(loader),
                "explain": f"{loader.explain()} {loader.explain()!r} {loader.explain().to_dict()}",
                "trace": f"{loader.trace(0)!r} {[record.to_dict() for record in loader.trace(0)]}",
                "state": f"{loader.explain().to_dict()}",
                "report": str(dataset.order_facts),
            }
            for text in texts.values():
                check(text)
            assert "127.0.0.1" in texts["trace"], name
        check(caplog.text)
        (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:140])
        with pytest.raises(SourceError) as caught:
            opened["npy"].read(range(64))
        check("".join(traceback.format_exception(caught.value)))

    @pytest.mark.processes
    def test_in_worker_processes(self, server: RangeServer, tmp_path: Path) -> None:
        dataset = loadax.from_npy({"x": secret_url(server.url, "a.npy")})
        (tmp_path / "a.npy").unlink()
        loader = loadax.Dataloader(dataset, batch_size=8, num_workers=1, worker_type="process")
        with pytest.raises(SourceError) as caught, iter(loader) as batches:
            next(batches)
        check("".join(traceback.format_exception(caught.value)))
