"""The servers as fixtures: a test module asks for them with `pytest_plugins = ["tests.servers.fixtures"]`.

The servers that take seconds to start live as long as the test process: every test has a bucket of its own. They start
before `no_leaks` looks at what runs, since pytest sets up wider scopes first.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.servers.faults import FaultProxy
from tests.servers.gcs import GcsServer
from tests.servers.loopback import DeadPort
from tests.servers.ranges import RangeServer
from tests.servers.s3 import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with closing(S3Server()) as server:
        yield server


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's environment is that of a user of `s3_server`."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(s3_server: S3Server, s3_environment: None) -> str:
    """A new bucket, and the environment to reach it."""
    return s3_server.bucket()


@pytest.fixture
def s3_proxy(s3_server: S3Server, s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before `s3_server`, and the environment to go through it."""
    with closing(FaultProxy(s3_server.url)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    with closing(GcsServer()) as server:
        yield server


@pytest.fixture
def range_server(tmp_path: Path) -> Iterator[RangeServer]:
    """The test's own folder, over HTTP."""
    with closing(RangeServer(tmp_path)) as server:
        yield server


@pytest.fixture
def http_proxy(range_server: RangeServer) -> Iterator[FaultProxy]:
    """A proxy before `range_server`."""
    with closing(FaultProxy(range_server.url)) as proxy:
        yield proxy


@pytest.fixture
def dead_port() -> Iterator[DeadPort]:
    with closing(DeadPort()) as port:
        yield port
