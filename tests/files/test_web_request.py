"""Requests to web servers by urllib: who gets the credentials of a redirected one."""

from contextlib import closing

import pytest

from loadax.files.web_request import open_web
from tests.servers.web import Asked, Sent, WebServer

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_credentials_follow_a_redirect_to_the_same_server_alone(is_elsewhere: bool) -> None:
    def answered(asked: Asked) -> Sent:
        return Sent(200, (asked.authorization or "none").encode())

    with closing(WebServer(answered)) as other:

        def redirected(asked: Asked) -> Sent:
            if asked.path == "/there":
                return answered(asked)
            place = f"{other.url}/there" if is_elsewhere else "/there"
            return Sent(302, headers={"Location": place})

        with closing(WebServer(redirected)) as first, open_web(first.url, {"Authorization": "Basic secret"}) as answer:
            assert answer.read() == (b"none" if is_elsewhere else b"Basic secret")
