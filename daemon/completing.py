"""Completing: what a shell is offered where a stream, version, label, node or invite is wanted.

The daemon of the home that the line names is asked, and has a moment for its answer. Without one nothing is offered
and nothing is said: somebody is typing.
"""

from __future__ import annotations

import contextlib
import queue
import shlex
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from .home import Home
    from .local.client import Client

T = TypeVar("T")

ANSWER_S: Final = 0.3
"""How long the daemon has: a key was pressed."""

Offer = list[CompletionItem]


def streams(ctx: click.Context, _parameter: click.Parameter, begun: str) -> Offer:
    """Streams that the node follows."""
    return _asked(ctx, begun, lambda client: ((s.stream, s.state.value) for s in client.streams()))


def versions(ctx: click.Context, _parameter: click.Parameter, begun: str) -> Offer:
    """Versions of the line's stream that are held, newest first, with their labels."""
    stream = ctx.params.get("stream")
    if not stream:
        return []
    return _asked(ctx, begun, lambda client: ((str(v.version), v.label) for v in client.versions(stream) if v.path))


def labels(ctx: click.Context, _parameter: click.Parameter, begun: str) -> Offer:
    """Labels of the line's stream. Not those that would have to be quoted: a shell puts in what it is offered."""
    stream = ctx.params.get("stream")
    if not stream:
        return []
    return _asked(
        ctx,
        begun,
        lambda client: (
            (v.label, f"version {v.version}") for v in client.versions(stream) if shlex.quote(v.label) == v.label
        ),
    )


def nodes(ctx: click.Context, _parameter: click.Parameter, begun: str) -> Offer:
    """Ids of the other nodes, with their sites."""
    return _asked(ctx, begun.lower(), lambda client: ((p.node, p.site) for p in client.peers()))


def invites(ctx: click.Context, _parameter: click.Parameter, begun: str) -> Offer:
    """Ids of the home's invites; no daemon is needed."""

    def held() -> Iterable[tuple[str, str]]:
        from .fleet.invites import listing

        return [(invite.id, f"{invite.uses_left} uses left") for invite in listing(_home(ctx).invites)]

    return _offered(begun, _quietly(held))


def _asked(ctx: click.Context, begun: str, ask: Callable[[Client], Iterable[tuple[str, str]]]) -> Offer:
    """What the daemon answers in time to somebody who has typed `begun`."""
    answers: queue.SimpleQueue[list[tuple[str, str]]] = queue.SimpleQueue()
    for client in _quietly(lambda: [_client(ctx)]):
        # A daemon that hangs is left to itself: the thread ends with the process.
        threading.Thread(target=lambda: answers.put(_quietly(lambda: ask(client))), daemon=True).start()  # noqa: B023
        with contextlib.suppress(queue.Empty):
            return _offered(begun, answers.get(timeout=ANSWER_S))
    return []


def _offered(begun: str, found: Iterable[tuple[str, str]]) -> Offer:
    return [CompletionItem(value, help=about or None) for value, about in found if value.startswith(begun)]


def _quietly(find: Callable[[], Iterable[T]]) -> list[T]:
    """What is found; nothing, whatever was in the way."""
    try:
        return list(find())
    except Exception:  # no home, no daemon, no right, a later format: a word about it would land in what is being typed
        return []


def _client(ctx: click.Context) -> Client:
    from .local.client import Client

    socket = ctx.params.get("socket")
    if socket is None:
        from .config import Config

        home = _home(ctx)
        home.check()
        socket = Config.load(home).local.socket
    return Client(socket, timeout_s=ANSWER_S)


def _home(ctx: click.Context) -> Home:
    from .home import Home

    home = ctx.params["home"]
    return home if isinstance(home, Home) else Home.at(home)
