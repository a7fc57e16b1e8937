"""Tokenizer files for tiny models: one token per byte, and a family's special tokens where it wants them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

_ASCII = 128


def write_tokenizer(
    folder: Path,
    special_tokens: Mapping[str, int],
    vocab_size: int,
    *,
    chat_template: str | None = None,
    roles: Mapping[str, str] | None = None,
) -> None:
    """Write tokenizer.json and tokenizer_config.json of a byte-level tokenizer without merges.

    Bytes get the ids that the special tokens leave free, ASCII first. Where fewer than 256 are free, a byte
    without an id becomes ``?``.

    Args:
        folder: made if it is missing.
        special_tokens: text -> id.
        vocab_size: ids are below it.
        chat_template: Jinja template, stored as published tokenizers store it.
        roles: e.g. ``{"eos_token": "<|endoftext|>"}``, for tokenizer_config.json.

    Raises:
        ValueError: ids collide or lie outside the vocabulary, or ASCII does not fit.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    used = set(special_tokens.values())
    if len(used) != len(special_tokens) or not all(0 <= index < vocab_size for index in used):
        raise ValueError(f"special token ids must differ and lie in 0..{vocab_size - 1}: {dict(special_tokens)}")
    free = [index for index in range(vocab_size) if index not in used]
    if len(free) < _ASCII:
        raise ValueError(f"{len(free)} ids are free for bytes; ASCII needs {_ASCII}")
    vocabulary = dict(zip(byte_symbols(), free, strict=False)) | dict(special_tokens)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special_tokens))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **(roles or {})}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def write_tokenizer_pieces(
    folder: Path,
    special_tokens: Mapping[str, int],
    settings: Mapping[str, object] | None = None,
    *,
    plain: Collection[str] = (),
) -> None:
    """Write vocab.json, merges.txt, added_tokens.json and tokenizer_config.json, as some families are published.

    The 256 bytes are ids 0 to 255, and there are no merges.

    Args:
        folder: made if it is missing.
        special_tokens: text -> id, from 256 on without a gap.
        settings: further keys of tokenizer_config.json, e.g. ``chat_template`` and ``eos_token``.
        plain: those of ``special_tokens`` that are published as added tokens with text of their own.

    Raises:
        ValueError: there is a gap.
    """
    if sorted(special_tokens.values()) != list(range(256, 256 + len(special_tokens))):
        raise ValueError(f"special token ids must be 256 to {255 + len(special_tokens)}: {dict(special_tokens)}")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    ordered = sorted(special_tokens.items(), key=lambda item: item[1])
    added = {str(index): {"content": text, **flags, "special": text not in plain} for text, index in ordered}
    contents = {
        "vocab.json": {symbol: index for index, symbol in enumerate(byte_symbols())},
        "added_tokens.json": dict(ordered),
        "tokenizer_config.json": {
            "added_tokens_decoder": added,
            "clean_up_tokenization_spaces": False,
            "unk_token": None,
            **(settings or {}),
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")


def byte_symbols() -> list[str]:
    """The printable stand-in of each byte in byte-level tokenizers, bytes in order.

    Bytes that print stand for themselves; the others, in order, are the code points from 256 on.
    """
    printing = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printing]
    return [chr(byte) if byte in printing else chr(256 + others.index(byte)) for byte in range(256)]
