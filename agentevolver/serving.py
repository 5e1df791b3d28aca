"""uvicorn for programs that end by being told to."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


class Server(uvicorn.Server):
    """uvicorn that does not die of the signal that stopped it, so that what is open can be closed and Ctrl-C is an ordinary end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop serving at SIGINT and SIGTERM."""
        loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
