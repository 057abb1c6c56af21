"""One run of the daemon: what stops it before it serves, and what ends it."""

import asyncio
import errno
import os
import signal
import threading
from types import SimpleNamespace

import pytest
from daemon.nodes import UTC_NOW, make_head

from patchswarm.daemon import node, run
from patchswarm.daemon.errors import ConfigError, HomeError, InUseError
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.home import Home


@pytest.fixture
def head(tmp_path):
    return make_head(tmp_path / "head")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """The logging of the test run is not the daemon's to set up."""
    monkeypatch.setattr(run.logs, "configure", lambda *_: None)


def serving(monkeypatch, coroutine):
    monkeypatch.setattr(node, "serve", coroutine)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_it_has_tidied_up(head, monkeypatch, number):
    seen = []

    async def serve(root, config, identity, _manager):
        seen.append((root, config, identity.node_id))
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("tidied up")

    serving(monkeypatch, serve)
    run.run(head.home)
    assert seen == [(head.home.root, head.config, head.identity.node_id), "tidied up"]


def test_the_home_is_locked_as_long_as_it_serves(head, monkeypatch):
    async def serve(_root, _config, _identity, _manager):
        with pytest.raises(InUseError, match=f"in use by process {os.getpid()}"), head.home.lock():
            pytest.fail("the home was free")

    serving(monkeypatch, serve)
    run.run(head.home)
    with head.home.lock():
        pass


def test_a_cancellation_of_its_own_is_no_signal(head, monkeypatch):
    async def serve(_root, _config, _identity, _manager):
        raise asyncio.CancelledError

    serving(monkeypatch, serve)
    with pytest.raises(asyncio.CancelledError):
        run.run(head.home)


def test_an_address_in_use_is_one_clear_error(head, monkeypatch):
    async def serve(_root, _config, _identity, _manager):
        raise OSError(errno.EADDRINUSE, "error while attempting to bind on address ('127.0.0.1', 7340)")

    serving(monkeypatch, serve)
    with pytest.raises(InUseError, match=r"stop who has it, or change node\.listen in .*config\.toml"):
        run.run(head.home)


def never(*_):
    pytest.fail("it served")


def test_nothing_is_served_from_what_is_no_home(tmp_path, monkeypatch):
    serving(monkeypatch, never)
    with pytest.raises(HomeError) as caught:
        run.run(Home.at(tmp_path))
    assert caught.value.exit is Exit.HOME


def test_nothing_is_served_with_a_wrong_configuration(head, monkeypatch):
    serving(monkeypatch, never)
    head.home.config.write_text("[nod]\n")
    with pytest.raises(ConfigError, match="unknown key nod"):
        run.run(head.home)


def test_nothing_is_served_with_an_expired_certificate(tmp_path, monkeypatch):
    serving(monkeypatch, never)
    expired = make_head(tmp_path / "head", now=UTC_NOW.replace(year=UTC_NOW.year - 1, day=1))
    with pytest.raises(HomeError, match=r"node\.crt: expired on"):
        run.run(expired.home)


async def test_a_start_that_compiles_for_a_while_says_so_before_it_is_done(monkeypatch):
    told, said = threading.Event(), []
    monkeypatch.setattr(node, "QUIET_S", 0.0)
    monkeypatch.setattr(node, "warm_up", lambda: said.append(told.wait(10)))
    monkeypatch.setattr(node, "_log", SimpleNamespace(info=lambda text: (said.append(text), told.set())))
    await node._compile()
    assert said == ["compiling kernels, once on this host: half a minute or so", True]


async def test_a_start_that_is_quick_says_nothing_of_it(monkeypatch):
    said = []
    monkeypatch.setattr(node, "warm_up", lambda: None)
    monkeypatch.setattr(node, "_log", SimpleNamespace(info=said.append))
    await node._compile()
    assert said == []
