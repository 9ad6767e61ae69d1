"""The text that the demo learns."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")


from pccl.demo.corpus import MIN_CHARACTERS, UNKNOWN, CorpusError, load_corpus  # noqa: E402


def test_standard_library_text_is_long_and_english() -> None:
    corpus = load_corpus(None)
    assert len(corpus.codes) > 300_000
    assert "the statement" in corpus.decode(corpus.codes)


def test_shards_and_held_out_part_cover_the_text_once() -> None:
    corpus = load_corpus(None)
    shards = [corpus.shard(index, 3) for index in range(3)]
    assert [code for shard in shards for code in shard] + corpus.held_out == corpus.codes


def test_rare_and_foreign_characters_become_unknown(tmp_path: Path) -> None:
    text = "abc" * MIN_CHARACTERS + "".join(chr(0x4E00 + index) for index in range(400))
    (tmp_path / "text").write_text(text, encoding="utf-8")
    corpus = load_corpus(str(tmp_path / "text"))
    assert len(corpus.vocabulary) == 257
    assert corpus.decode(corpus.encode("a\u9fff")) == "a" + UNKNOWN


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"short", "needs at least"), (b"\xff\xfe" * MIN_CHARACTERS, "not UTF-8")],
)
def test_unusable_text_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        load_corpus(str(path))
