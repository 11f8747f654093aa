"""Encode many texts at once: by the tokenizer's own threads, and into arrays instead of lists of Python numbers."""

from __future__ import annotations

from typing import Any

import numpy as np


def encode_texts(
    tokenizer: Any, *texts: list[str], max_length: int | None = None, special: bool = True
) -> dict[str, list[Any]]:
    """Return what `tokenizer(*texts, truncation=True, max_length=max_length)` returns, without padding, as arrays.

    `texts` are one list, or two for pairs. Without `max_length` nothing is cut off; without `special`, no special
    tokens are added.
    """
    if not texts[0] or not _is_plain(tokenizer):
        return _call_tokenizer(tokenizer, texts, max_length, special)
    # One short call sets how texts are cut, in the way of every call.
    _call_tokenizer(tokenizer, [[""] for _ in texts], max_length, special)
    # It leaves out where tokens begin and end in the text.
    made = tokenizer.backend_tokenizer.encode_batch_fast(
        texts[0] if len(texts) == 1 else list(zip(*texts, strict=True)), add_special_tokens=special
    )
    columns: dict[str, list[Any]] = {"input_ids": [np.array(one.ids, np.int32) for one in made]}
    if "token_type_ids" in tokenizer.model_input_names:
        columns["token_type_ids"] = [np.array(one.type_ids, np.int8) for one in made]
    if "attention_mask" in tokenizer.model_input_names:
        columns["attention_mask"] = [np.ones(len(ids), np.int8) for ids in columns["input_ids"]]
    return columns


def _call_tokenizer(tokenizer: Any, texts: Any, max_length: int | None, special: bool) -> dict[str, list[Any]]:
    cut = {} if max_length is None else {"truncation": True, "max_length": max_length}
    return dict(tokenizer(*texts, add_special_tokens=special, verbose=False, **cut))


def _is_plain(tokenizer: Any) -> bool:
    """Whether calling a tokenizer means what it means for most: some classes add steps of their own."""
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return False
    kind = type(tokenizer)
    return (
        kind.__call__ is PreTrainedTokenizerBase.__call__ and kind._encode_plus is PreTrainedTokenizerFast._encode_plus
    )
