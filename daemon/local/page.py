"""The status page: one file without outside assets, which asks the API like any other client."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from aiohttp import web

from .endpoint import Call, Endpoint, Nothing

PATH: Final = "/"
"""Served without a token: there is nothing in it. It takes the token from the address, after '#token='."""

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageEndpoint:
    """The page."""

    def __init__(self) -> None:
        self._text = files(__package__).joinpath("page.html").read_text("utf-8")

    def table(self) -> tuple[Endpoint[Any, Any], ...]:
        """The endpoint."""
        return (Endpoint("GET", PATH, "Status page for people", self.page, Nothing, Nothing, media="text/html"),)

    async def page(self, _call: Call[Nothing, Nothing]) -> web.Response:
        """GET /."""
        return web.Response(text=self._text, content_type="text/html", charset="utf-8", headers=_HEADERS)
