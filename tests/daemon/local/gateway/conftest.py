"""A host with a daemon, a contract engine of each kind, and a gateway in between."""

import contextlib

import pytest
from daemon.local.contract_sglang import ContractSglang
from daemon.local.contract_vllm import ContractVllm

from daemon.local.gateway import host


@pytest.fixture
async def local(tmp_path):
    """The daemon's service and its socket."""
    async with host.daemon(tmp_path) as (service, socket):
        yield service, socket


@pytest.fixture
def node(local):
    return local[0]


@pytest.fixture
async def sglang():
    async with ContractSglang() as engine:
        yield engine


@pytest.fixture
async def vllm():
    async with ContractVllm() as engine:
        yield engine


@pytest.fixture
async def open_gateway(local):
    """Opens gateways beside the daemon; they end with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(engine, **settings):
            return await stack.enter_async_context(
                host.gateway(local[1], engine=engine.kind, engine_url=engine.url, **settings)
            )

        yield open_one


@pytest.fixture
async def gateway(open_gateway, node, sglang):
    """An SGLang engine at version 1, and its gateway."""
    await node.commit(1)
    running = await open_gateway(sglang)
    await running.at(1)
    return running
