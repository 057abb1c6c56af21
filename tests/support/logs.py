"""Logging is the process's: a test that sets it up gives it back as it was."""

import contextlib
import logging

import structlog


@contextlib.contextmanager
def logging_restored():
    """Whatever is configured within, nothing of it is left behind."""
    root, asyncios = logging.getLogger(), logging.getLogger("asyncio")
    handlers, level, asyncio_level = root.handlers[:], root.level, asyncios.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        asyncios.setLevel(asyncio_level)
        structlog.reset_defaults()
