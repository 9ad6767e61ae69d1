"""Futures whose callbacks may make calls, in the same order on all members.

A callback runs when its call has ended, in one thread or another, at a moment that differs between members. Calls that it makes
would come between those of the program at other places on each. So they are not numbered with the program's: what names one is
the call whose end it follows, the place of the callback among that call's, and the place of the call within the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pccl.distributed._calls import Origin, made_under

Device = int | str | torch.device


class Future(torch.futures.Future[Any]):
    """A future of a call's result, or of what a callback returns."""

    def __init__(self, origin: Origin | None, devices: Sequence[Device] = ()) -> None:
        super().__init__(devices=[*devices])
        self._origin = origin
        self._devices = devices
        self._callbacks = 0

    def then(self, callback: Callable[[Any], Any]) -> Future:
        origin = self._next_origin()
        following = Future(origin, self._devices)

        def run(_: Any) -> None:
            try:
                with made_under(origin):
                    result = callback(self)
            except Exception as error:
                following.set_exception(error)
            else:
                following.set_result(result)

        super().add_done_callback(run)
        return following

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        origin = self._next_origin()

        def run(_: Any) -> None:
            with made_under(origin):
                callback(self)

        super().add_done_callback(run)

    def _next_origin(self) -> Origin | None:
        self._callbacks += 1
        return None if self._origin is None else (*self._origin, self._callbacks)
