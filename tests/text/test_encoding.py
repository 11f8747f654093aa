"""Texts that are encoded at once are what the tokenizer makes of them by a call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskrecipe.text import CAUSAL_TOKENS, encode_texts, train_tokenizer, vocabulary, word_tokenizer

TEXTS = ["one two three", "", " ", "four\nfive", "six " * 50]
TOKENIZERS = {
    "words": lambda: word_tokenizer(vocabulary()),
    "bytes": lambda: train_tokenizer([TEXTS], 300, CAUSAL_TOKENS),
}


def as_lists(columns: Any) -> dict[str, list[list[int]]]:
    return {name: [list(map(int, one)) for one in lists] for name, lists in columns.items()}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("options", [{}, {"max_length": 4}, {"special": False}])
@pytest.mark.parametrize("pairs", [False, True])
def test_it_is_what_a_call_returns(name: str, options: dict[str, Any], pairs: bool) -> None:
    tokenizer = TOKENIZERS[name]()
    texts = [TEXTS, TEXTS[::-1]] if pairs else [TEXTS]
    cut = {"truncation": True, "max_length": options["max_length"]} if "max_length" in options else {}
    expected = tokenizer(*texts, add_special_tokens=options.get("special", True), **cut)
    tokenizer(["a"], max_length=2, truncation=True)  # what another call has set
    made = encode_texts(tokenizer, *texts, **options)
    assert list(made) == list(expected)
    assert as_lists(made) == as_lists(expected)


def test_a_tokenizer_with_steps_of_its_own_is_called() -> None:
    class Own(type(word_tokenizer(vocabulary()))):  # type: ignore[misc]
        def __call__(self, texts: list[str], **_: Any) -> dict[str, Any]:
            return {"input_ids": [[7] for _ in texts]}

    tokenizer = word_tokenizer(vocabulary())
    tokenizer.__class__ = Own
    assert encode_texts(tokenizer, ["a", "b"]) == {"input_ids": [[7], [7]]}


def test_rows_get_small_numbers() -> None:
    made = encode_texts(word_tokenizer(vocabulary()), TEXTS)
    assert {name: lists[0].dtype for name, lists in made.items()}["input_ids"] == np.int32
