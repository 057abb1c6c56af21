"""From a trainer's step to an engine's token: real models, real daemons, gateways, and the openai client.

A trainer steps and publishes. Three rollout hosts follow, each with an engine behind its gateway that loads from the
leased directory, and one more engine that is only ever moved in place, by deltas. Every answer says which weights made
it, and must be, token for token and log-probability for log-probability, what the trainer's own weights of that
version say.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
import torch
from bench_gateway import first_line, running
from local_fleet import COMMAND, LocalFleet, Node, free_port
from rich.console import Console
from rich.table import Table
from tiny_model import Trainer, complete, tokens_of, tokens_of_chat
from torch import nn

from patchswarm.daemon.local.engines import sglang_loader
from patchswarm.daemon.local.lease import Lease

HERE = Path(__file__).parent
STREAM = "tiny"
NODES = ("us-east", "eu-west", "ap-south")
TOKENS = 12
WAIT_S = 60.0
CHAT = [{"role": "user", "content": "What do the weights say?"}]
PROMPT = "The weights say"


class DifferentError(Exception):
    """An answer is not what the trainer's weights of its version say."""


@dataclass
class Run:
    """What the trainer has served, and what was compared with it."""

    served: dict[int, nn.Module] = field(default_factory=dict)
    compared: Counter[tuple[str, str]] = field(default_factory=Counter)
    crossed: int = 0
    """Answers in whose midst the weights changed: no single version is what they should be."""

    def serve(self, version: int, model: nn.Module) -> None:
        """Take the model of a version. Raises DifferentError when nobody could tell it from the one before."""
        self.served[version] = model
        before = self.served.get(version - 1)
        prompt = tokens_of(PROMPT)
        if before is not None and complete(before, prompt, TOKENS) == complete(model, prompt, TOKENS):
            raise DifferentError(
                f"versions {version - 1} and {version} say the same: the comparison would prove nothing"
            )

    def check(
        self, where: str, how: str, version: int, prompt: list[int], got: list[tuple[str, float]], seed: int
    ) -> None:
        """Hold one answer, its tokens and log-probabilities, against the trainer's model. Raises DifferentError."""
        temperature = 1.0 if seed else 0.0
        expected = complete(self.served[version], prompt, TOKENS, temperature=temperature, seed=seed)
        if got != [(token.text, token.logprob) for token in expected]:
            first = next(
                (number for number, (a, b) in enumerate(zip(got, expected, strict=False)) if a != (b.text, b.logprob)),
                min(len(got), TOKENS),
            )
            raise DifferentError(
                f"{where}, {how}: token {first} of an answer of version {version} is not what the trainer's weights say"
            )
        self.compared[where, how] += 1


@contextmanager
def engine(model: Path) -> Iterator[str]:
    """A running reference engine; its address."""
    port = free_port()
    command: list[str | Path] = [
        sys.executable,
        HERE / "reference_engine.py",
        "--model-path",
        model,
        "--port",
        str(port),
    ]
    with running(*command, "--custom-weight-loader", sglang_loader.LOADER) as process:
        first_line(process, "ready")
        yield f"http://127.0.0.1:{port}"


@contextmanager
def gateway(node: Node, engine_url: str) -> Iterator[str]:
    """A gateway before an engine, on its node; its address."""
    listen = f"127.0.0.1:{free_port()}"
    arguments = ["--engine", "sglang", "--engine-url", engine_url, "--stream", STREAM, "--listen", listen]
    with running(COMMAND, "gateway", *arguments, "--home", node.home) as process:
        first_line(process, '"message":"moved"')
        yield f"http://{listen}"


async def ask(run: Run, where: str, client: openai.AsyncOpenAI, version: int, seed: int) -> None:
    """Both of OpenAI's routes, asking for at least `version`, and both answers compared."""
    wanted = {"weight_version": {"min_version": version, "wait_s": WAIT_S}}
    options: dict[str, Any] = {"model": "tiny", "max_tokens": TOKENS, "seed": seed, "extra_body": wanted}
    options["temperature"] = 1.0 if seed else 0.0
    text = await client.completions.create(prompt=PROMPT, logprobs=1, **options)
    said = text.choices[0].logprobs
    assert said is not None
    _compare(
        run,
        where,
        "completions",
        text,
        version,
        tokens_of(PROMPT),
        zip(said.tokens, said.token_logprobs, strict=True),
        seed,
    )
    chat = await client.chat.completions.create(messages=CHAT, logprobs=True, **options)
    content = chat.choices[0].logprobs.content
    pairs = ((entry.token, entry.logprob) for entry in content)
    _compare(run, where, "chat", chat, version, tokens_of_chat(CHAT), pairs, seed)


def _compare(run: Run, where: str, how: str, answer: Any, wanted: int, prompt: list[int], got: Any, seed: int) -> None:
    marks = answer.model_extra
    start, end = marks["weight_version_start"], marks["weight_version_end"]
    if start < wanted:
        raise DifferentError(f"{where}, {how}: version {start} answered a request for at least {wanted}")
    if start != end:
        run.crossed += 1
        return
    run.check(where, how, start, prompt, list(got), seed)


class Deltas:
    """An engine that is only ever moved in place, and the lease on what it holds."""

    def __init__(self, run: Run, node: Node, url: str, session: aiohttp.ClientSession) -> None:
        self._run = run
        self._node = node
        self._url = url
        self._session = session
        self._held: Lease | None = None

    async def begin(self, version: int) -> None:
        """Load the first version from its directory."""
        lease = await self._lease(version)
        body = {"model_path": str(lease.path), "weight_version": str(version), "flush_cache": False}
        await self._post("/update_weights_from_disk", body)
        self._held = lease

    async def move(self, version: int) -> None:
        """Bring it to a later version by what changes, and let go of the one before."""
        assert self._held is not None
        lease = await self._lease(version)
        socket = str(self._node.home / "patchswarm.sock")
        body = await asyncio.to_thread(sglang_loader.request, STREAM, self._held.version, version, socket=socket)
        await self._post("/update_weights_from_tensor", body)
        before, self._held = self._held, lease
        await asyncio.to_thread(before.__exit__, None, None, None)

    async def _lease(self, version: int) -> Lease:
        client = self._node.client
        await asyncio.to_thread(client.wait, STREAM, version, WAIT_S)
        return await asyncio.to_thread(client.lease(STREAM, version).__enter__)

    async def check(self, version: int) -> None:
        """Ask it on SGLang's own route, and compare."""
        sampling = {"max_new_tokens": TOKENS, "temperature": 0}
        answer = await self._post("/generate", {"text": PROMPT, "sampling_params": sampling, "return_logprob": True})
        meta = answer["meta_info"]
        if meta["weight_version"] != str(version):
            raise DifferentError(f"deltas: version {meta['weight_version']} answers, not {version}")
        got = [(f"{token} ", logprob) for logprob, token, _ in meta["output_token_logprobs"]]
        self._run.check("in place", "generate", version, tokens_of(PROMPT), got, 0)

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        async with self._session.post(self._url + path, json=body) as response:
            if response.status != 200:
                raise DifferentError(f"deltas: {path} answered {response.status}: {await response.text()}")
            return await response.json()

    async def end(self) -> None:
        """Let go."""
        if self._held is not None:
            await asyncio.to_thread(self._held.__exit__, None, None, None)


async def follow(run: Run, root: Path, fleet: LocalFleet, steps: int, seed: int) -> None:
    """Everything: set up, step after step, compare."""
    trainer = Trainer(seed)
    boot = trainer.write(root / "boot")

    async def publish(version: int) -> None:
        await asyncio.to_thread(trainer.step)
        run.serve(version, trainer.served())
        directory = await asyncio.to_thread(trainer.write, root / f"step{version}")
        await asyncio.to_thread(fleet.head.publish, directory, STREAM, "--label", f"step {trainer.steps}")

    await publish(1)
    async with AsyncExitStack() as stack:
        gateways = stack.enter_context(ExitStack())
        clients = {}
        for name in NODES:
            url = await asyncio.to_thread(gateways.enter_context, engine(boot))
            address = await asyncio.to_thread(gateways.enter_context, gateway(fleet.nodes[name], url))
            client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0, timeout=2 * WAIT_S)
            clients[name] = await stack.enter_async_context(client)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = await asyncio.to_thread(gateways.enter_context, engine(boot))
        in_place = Deltas(run, fleet.nodes[NODES[0]], url, session)
        await in_place.begin(1)
        stack.push_async_callback(in_place.end)
        await in_place.check(1)
        for version in range(1, steps + 1):
            async with asyncio.TaskGroup() as tasks:
                if version > 1:
                    tasks.create_task(publish(version))
                for name, client in clients.items():
                    # One that takes what there is, and two that wait for what is only now being published.
                    tasks.create_task(ask(run, name, client, max(version - 1, 1), seed=version))
                    tasks.create_task(ask(run, name, client, version, seed=0))
                    tasks.create_task(ask(run, name, client, version, seed=100 + version))
            if version > 1:
                await in_place.move(version)
                await in_place.check(version)


def leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    """The errors in a group of groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def show(run: Run) -> None:
    """The table."""
    table = Table("where", "route", "answers equal to the trainer's", box=None)
    for (where, how), count in sorted(run.compared.items()):
        table.add_row(where, how, str(count))
    Console(width=100).print(table)
    print(f"{run.crossed} answers crossed a change of weights, and say so")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/e2e_engine", description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="versions to publish (default: 4)")
    parser.add_argument("--seed", type=int, default=1, help="of the trainer (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was compared to FILE")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps takes 2 and more")
    torch.set_num_threads(1)  # as the engine
    begun_s = time.monotonic()
    run, different = Run(), list[str]()
    with tempfile.TemporaryDirectory(prefix="ps-e2e-") as root, LocalFleet(Path(root)) as fleet:
        fleet.add_head()
        for name in NODES:
            fleet.add(name, f"{name}/a")
        try:
            asyncio.run(follow(run, Path(root), fleet, options.steps, options.seed))
        except* DifferentError as group:
            different = [str(error) for error in leaves(group)]
    show(run)
    if different:
        print("\n".join(f"error: {line}" for line in different), file=sys.stderr)
        return 1
    if options.json:
        compared = [{"where": where, "route": how, "answers": count} for (where, how), count in run.compared.items()]
        options.json.write_text(json.dumps({"compared": compared, "crossed": run.crossed}, indent=2) + "\n")
    expected = 2 * 3 * len(NODES) * options.steps
    done = sum(count for (_, how), count in run.compared.items() if how != "generate") + run.crossed
    if done != expected or run.compared["in place", "generate"] != options.steps:
        print(f"error: {done} answers were looked at instead of {expected}", file=sys.stderr)
        return 1
    print(f"every answer is what the trainer's own weights say; {time.monotonic() - begun_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
