"""What travels between an orchestrator and its processes: JSON, one object per line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of dataclasses that travel."""

    def to_fields(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> Self:
        """Opposite of to_fields; ValueError for what is none."""
        try:
            return cls(**given)
        except TypeError as error:
            raise ValueError(f"not a {cls.__name__.lower()}: {given!r}") from error


@dataclass(frozen=True, kw_only=True)
class Report(Record):
    """Base of a family of reports: a direct subclass is the family, and its subclasses are told apart by their names."""

    kinds: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if Report in cls.__bases__:
            cls.kinds = {}
        else:
            cls.kinds[cls.__name__.lower()] = cls

    def to_fields(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": type(self).__name__.lower(), **asdict(self)}

    def to_line(self) -> bytes:
        """One line of JSON, with its line end."""
        return json.dumps(self.to_fields(), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> Self:
        """Opposite of to_fields; ValueError for what is no report of the family."""
        try:
            left = dict(given)
            report: Self = cls.kinds[left.pop("kind")](**left)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a report: {given!r}") from error
        return report

    @classmethod
    def from_line(cls, line: str | bytes) -> Self:
        """Opposite of to_line; ValueError for what is no report of the family."""
        return cls.from_fields(json.loads(line))
