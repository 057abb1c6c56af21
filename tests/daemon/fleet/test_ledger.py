"""What the fleet has learned is in the catalog in a moment, and in any case when the node ends."""

import asyncio
import contextlib

import pytest
from daemon.single import until

from patchswarm.daemon.fleet.ledger import Ledger
from patchswarm.protocol.ids import digest
from patchswarm.protocol.messages import ObjectKind
from patchswarm.storage.catalog import Catalog


@pytest.fixture
def catalog(tmp_path):
    with contextlib.closing(Catalog(tmp_path / "catalog.db")) as catalog:
        yield catalog


@contextlib.asynccontextmanager
async def writing(ledger):
    task = asyncio.create_task(ledger.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def header(number):
    data = b"header %d" % number
    return ObjectKind.HEADER, digest(data), data


async def test_what_is_kept_is_written_and_what_is_forgotten_goes(catalog):
    ledger = Ledger(catalog)
    async with writing(ledger):
        ledger.keep(*header(1))
        await until(lambda: catalog.objects() == [header(1)])
        ledger.keep(*header(2))
        ledger.forget([header(1)[1]])
        await until(lambda: catalog.objects() == [header(2)])


async def test_what_was_heard_in_the_last_moment_survives_the_end(catalog):
    ledger = Ledger(catalog)
    async with writing(ledger):
        ledger.keep(*header(1))
        await asyncio.sleep(0)  # it may be on its way in a thread by now
        ledger.keep(*header(2))
    assert sorted(catalog.objects()) == sorted([header(1), header(2)])
