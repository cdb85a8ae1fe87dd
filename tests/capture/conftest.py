"""Servers on loopback for tests of the live sources."""

import pytest

from kvtrace.capture import recorder
from kvtrace.capture.proxy.exchange import Limits
from kvtrace.capture.sources.proxy import proxy_app
from tests.capture.recorded import Queue
from tests.capture.servers import serving
from tests.capture.stub_model import StubModel


@pytest.fixture(autouse=True)
def long_hours(monkeypatch):
    """A window of an hour, the default, lasts an hour longer, so that none ends during a test at a full hour."""
    whole = recorder.end_of_window
    later = lambda now_s, window_s: whole(now_s, window_s) + (3600.0 if window_s == 3600 else 0.0)  # noqa: E731
    monkeypatch.setattr(recorder, "end_of_window", later)


@pytest.fixture
def model():
    return StubModel()


@pytest.fixture
def queue():
    return Queue()


@pytest.fixture
def upstream(model, socket_enabled):
    with serving(model, http="httptools") as url:  # without the limits of our servers
        yield url


@pytest.fixture
def proxied(upstream, queue):
    """Makes a proxy before the stub model: its app, whose `url` is its address."""
    running = []

    def run(to=upstream, put=queue.put, **options):
        limits = {name: options.pop(name) for name in list(options) if name in Limits.__slots__}
        app = proxy_app(put, to, limits=Limits(**limits), **options)
        server = serving(app)
        app.url = server.__enter__()
        running.append(server)
        return app

    yield run
    for server in reversed(running):
        server.__exit__(None, None, None)
