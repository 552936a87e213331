"""A fake model server, which tests start, kill and start again."""

from collections.abc import Iterator

import pytest
from served import FakeServer


@pytest.fixture(scope="session")
def _one_fake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    server = FakeServer(tmp_path_factory.mktemp("fake-server"))
    yield server
    server.kill()


@pytest.fixture
def fake_server(_one_fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """To be started by the test; one process serves all tests that leave it alive."""
    for name in ("OPENAI_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return _one_fake_server
