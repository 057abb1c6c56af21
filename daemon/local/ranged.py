"""Answers that are a stretch of an open file: conditions, ranges and the sending, the same for all of them."""

from __future__ import annotations

import threading

from aiohttp import web

from .conditions import check_match, choose_range, is_unchanged, range_applies
from .errors import UnsatisfiableRangeError
from .problems import problem_response
from .sendfile import FileSender, Span


async def serve_span(
    request: web.Request, sender: FileSender, span: Span, etag: str, headers: dict[str, str], voided: threading.Event
) -> web.StreamResponse:
    """Answer with `span`, as far as the request's headers want it.

    Raises PreconditionFailedError, and what `FileSender.send` raises.
    """
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **headers}
    check_match(request.headers.get("If-Match"), etag)
    if is_unchanged(request.headers.get("If-None-Match"), etag):
        return web.Response(status=304, headers=headers)
    wanted = request.headers.get("Range") if range_applies(request.headers.get("If-Range"), etag) else None
    try:
        part = choose_range(wanted, span.size)
    except UnsatisfiableRangeError as error:
        return problem_response(error, {"Content-Range": f"bytes */{span.size}"})
    if part is not None:
        headers["Content-Range"] = f"bytes {part[0]}-{part[1] - 1}/{span.size}"
        span = Span(span.descriptor, span.offset + part[0], part[1] - part[0])
    response = web.StreamResponse(status=206 if part else 200, headers=headers)
    return await sender.send(request, response, span, voided)
