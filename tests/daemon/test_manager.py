"""What a service manager hears from the daemon."""

import asyncio
import os
import socket

import pytest

from patchswarm.daemon.manager import ServiceManager


@pytest.fixture
def ear(tmp_path):
    """The socket of a manager that listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(5)
        yield made


def manager_at(ear, **environment):
    return ServiceManager.of({"NOTIFY_SOCKET": ear.getsockname(), **environment})


def test_it_is_told_of_start_reload_and_end(ear):
    manager = manager_at(ear)
    manager.ready()
    assert ear.recv(100) == b"READY=1"
    manager.reloading()
    assert ear.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
    manager.status("two\nlines")
    assert ear.recv(100) == b"STATUS=two lines"
    manager.stopping()
    assert ear.recv(100) == b"STOPPING=1"


def test_an_abstract_address_is_understood():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind("")  # the kernel chooses one
        ServiceManager("@" + ear.getsockname()[1:].decode()).ready()
        assert ear.recv(100) == b"READY=1"


def test_without_a_manager_and_with_one_that_is_gone_nothing_happens(tmp_path):
    ServiceManager.of({}).ready()
    ServiceManager(str(tmp_path / "nobody")).ready()


async def test_the_watchdog_is_fed_while_the_daemon_answers(ear):
    manager = manager_at(ear, WATCHDOG_USEC="30000", WATCHDOG_PID=str(os.getpid()))
    asked = asyncio.Event()

    async def answers():
        asked.set()

    task = asyncio.create_task(manager.keep_alive(answers))
    await asked.wait()
    assert await asyncio.to_thread(ear.recv, 100) == b"WATCHDOG=1"
    assert await asyncio.to_thread(ear.recv, 100) == b"WATCHDOG=1"
    task.cancel()


@pytest.mark.parametrize("fault", ["hangs", "fails"])
async def test_the_watchdog_starves_when_it_does_not(ear, fault):
    manager = manager_at(ear, WATCHDOG_USEC="30000")
    tried = asyncio.Queue()

    async def silent():
        tried.put_nowait(fault)
        if fault == "fails":
            raise OSError("no answer")
        await asyncio.Event().wait()

    task = asyncio.create_task(manager.keep_alive(silent))
    for _ in range(3):
        await tried.get()
    ear.setblocking(False)
    with pytest.raises(BlockingIOError):
        ear.recv(100)
    task.cancel()


async def test_the_watchdog_of_another_process_is_not_ours(ear):
    manager = manager_at(ear, WATCHDOG_USEC="30000", WATCHDOG_PID="1")

    async def never():
        pytest.fail("it was asked")

    await manager.keep_alive(never)
