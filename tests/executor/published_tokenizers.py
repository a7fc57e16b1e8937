"""Tokenizer folders as published by Dream and SDAR, put together from tests/data/tokenizers."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

from dare_core.testing.tokenizers import byte_symbols

FILES = Path(__file__).parents[1] / "data" / "tokenizers"


def write_published_tokenizer(family: str, folder: Path) -> Path:
    """``dream`` or ``sdar``. vocab.json follows from merges.txt: bytes, those that print first, then every merge."""
    folder.mkdir(parents=True)
    for path in (FILES / family).iterdir():
        shutil.copyfile(path, folder / path.name)
    merges = gzip.decompress((FILES / "merges.txt.gz").read_bytes()).decode("utf-8")
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    symbols = byte_symbols()
    order = sorted(range(256), key=lambda byte: (symbols[byte] != chr(byte), byte))
    words = [symbols[byte] for byte in order] + [line.replace(" ", "") for line in merges.splitlines()[1:] if line]
    vocabulary = {word: index for index, word in enumerate(words)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    return folder
