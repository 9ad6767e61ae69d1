"""Numbers on command lines."""

from __future__ import annotations

import math
from typing import Any

import click


class Range(click.FloatRange):
    """As click's, which lets "nan" through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Reads a number of the range; the error of any other text is click's."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number
