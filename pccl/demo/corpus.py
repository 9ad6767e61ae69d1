"""The text that the demo learns, as characters.

Everything here is a pure function of the text and a few numbers, so that every process that reads the same
file comes to the same vocabulary, the same shards and the same held-out part.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

MIN_CHARACTERS = 20_000
MAX_VOCABULARY = 256
UNKNOWN = "\ufffd"
HELD_OUT = 0.1  # share of the text, at its end, that nobody trains on


class CorpusError(Exception):
    """The text cannot be used; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text as numbers: ``codes`` index ``vocabulary``, a string with one character per code."""

    vocabulary: str
    codes: list[int]

    @property
    def training(self) -> list[int]:
        """What the shards are cut from."""
        return self.codes[: int(len(self.codes) * (1 - HELD_OUT))]

    @property
    def held_out(self) -> list[int]:
        """What the validation loss is measured on."""
        return self.codes[int(len(self.codes) * (1 - HELD_OUT)) :]

    def shard(self, index: int, count: int) -> list[int]:
        """Part ``index`` of ``count`` parts of the training text, equal in length to within one character."""
        text = self.training
        return text[len(text) * index // count : len(text) * (index + 1) // count]

    def encode(self, text: str) -> list[int]:
        """Codes of ``text``; a character outside the vocabulary becomes its last entry."""
        index = {character: code for code, character in enumerate(self.vocabulary)}
        return [index.get(character, len(self.vocabulary) - 1) for character in text]

    def decode(self, codes: list[int]) -> str:
        """Text of ``codes``."""
        return "".join(self.vocabulary[code] for code in codes)


def load_corpus(path: str | None) -> Corpus:
    """Read a UTF-8 file, or without one the documentation text inside Python's standard library.

    Raises CorpusError where the file is missing, unreadable, no UTF-8 or too short.
    """
    text = _read(path)
    if len(text) < MIN_CHARACTERS:
        raise CorpusError(f"{path} has {len(text):,} characters; the demo needs at least {MIN_CHARACTERS:,}")
    common = Counter(text).most_common(MAX_VOCABULARY)
    vocabulary = "".join(sorted(character for character, _ in common)) + UNKNOWN
    corpus = Corpus(vocabulary=vocabulary, codes=[])
    corpus.codes.extend(corpus.encode(text))
    return corpus


def _read(path: str | None) -> str:
    if path is None:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics))
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 text (byte {error.start}); convert it first") from error
