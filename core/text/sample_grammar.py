"""Sample documents of a small grammar, for language models.

A document has one topic. The first word of a sentence is singular or plural and decides how noun and verb end. A model
that learns this can choose among eight words for the first of eight places and among four for four others, which is a
perplexity of about 2.7. A model that knows only how frequent each word is has a perplexity of 70.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taskrecipe.recipe import Splits

if TYPE_CHECKING:
    from collections.abc import Sequence

SINGULAR = ("this", "that", "every", "one")
PLURAL = ("these", "those", "all", "some")

TOPICS = (
    ("small old white fast", "boat ship sailor gull", "sail drift turn wait", "harbor island shore lighthouse"),
    ("brown young hungry tame", "horse goat hen farmer", "eat rest run sleep", "barn field fence gate"),
    ("hot sweet fresh thick", "soup cake sauce cook", "cool boil rise stand", "oven table window shelf"),
    ("tall dark green wild", "tree fern owl fox", "grow hide listen move", "brook clearing rock path"),
    ("loud kind clever new", "teacher pupil parent guest", "read write laugh speak", "school desk blackboard hall"),
    ("sad slow famous quiet", "singer dancer drum violin", "sing play begin stop", "stage curtain balcony door"),
    ("steep cold gray high", "peak glacier climber eagle", "shine fall climb circle", "valley cabin ridge lake"),
    ("busy late red crowded", "tram cab driver clerk", "leave arrive stall return", "station bridge corner market"),
)
"""Adjectives, nouns, verbs and places of each topic."""


def grammar_words() -> list[str]:
    """Return every word of the grammar."""
    adjectives, nouns, verbs, places = (" ".join(topic[i] for topic in TOPICS).split() for i in range(4))
    inflected = [word + "s" for word in nouns + verbs]
    return sorted({*SINGULAR, *PLURAL, *adjectives, *nouns, *verbs, *places, *inflected, "near", "the", "."})


def make_sample_documents() -> Splits:
    """Make documents to train on, and others to evaluate on."""
    from datasets import Dataset

    sizes = {"train": 600, "validation": 100}
    return {
        split: Dataset.from_dict({"text": _make_documents(np.random.default_rng(number), size)})
        for number, (split, size) in enumerate(sizes.items())
    }


def _make_documents(random: np.random.Generator, count: int) -> list[str]:
    return [_make_document(random) for _ in range(count)]


def _make_document(random: np.random.Generator) -> str:
    topic = [words.split() for words in TOPICS[random.integers(len(TOPICS))]]
    return " ".join(_make_sentence(random, topic) for _ in range(random.integers(3, 9)))


def _make_sentence(random: np.random.Generator, topic: Sequence[Sequence[str]]) -> str:
    plural = bool(random.integers(2))
    first = random.choice(PLURAL if plural else SINGULAR)
    adjective, noun, verb, place = (random.choice(words) for words in topic)
    noun, verb = (f"{noun}s", verb) if plural else (noun, f"{verb}s")
    return f"{first} {adjective} {noun} {verb} near the {place} ."
