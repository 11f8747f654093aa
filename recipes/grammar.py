"""Sample documents of a small grammar, for language models.

A document keeps to one topic, and a sentence to one number: its first word decides how noun and verb end. A model
that learns this is left with eight words for the first of eight places and four for each of four others, a perplexity
of about 2.7; one that knows only how common each word is stays at 70.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taskrecipe.core.recipe import Splits

if TYPE_CHECKING:
    from collections.abc import Sequence

SINGULAR = ("this", "that", "every", "one")
PLURAL = ("these", "those", "all", "some")

TOPICS = (
    ("small old white fast", "boat ship sailor gull", "sail drift turn wait", "harbour island shore lighthouse"),
    ("brown young hungry tame", "horse goat hen farmer", "eat rest run sleep", "barn field fence gate"),
    ("hot sweet fresh thick", "soup cake sauce cook", "cool boil rise stand", "oven table window shelf"),
    ("tall dark green wild", "tree fern owl fox", "grow hide listen move", "brook clearing rock path"),
    ("loud kind clever new", "teacher pupil parent guest", "read write laugh speak", "school desk blackboard hall"),
    ("sad slow famous quiet", "singer dancer drum violin", "sing play begin stop", "stage curtain balcony door"),
    ("steep cold grey high", "peak glacier climber eagle", "shine fall climb circle", "valley cabin ridge lake"),
    ("busy late red crowded", "tram cab driver clerk", "leave arrive stall return", "station bridge corner market"),
)
"""Adjectives, nouns, verbs and places of each topic."""


def words() -> list[str]:
    """Every word of the grammar."""
    adjectives, nouns, verbs, places = (" ".join(topic[i] for topic in TOPICS).split() for i in range(4))
    inflected = [word + "s" for word in nouns + verbs]
    return sorted({*SINGULAR, *PLURAL, *adjectives, *nouns, *verbs, *places, *inflected, "near", "the", "."})


def sample_splits() -> Splits:
    """Documents to train on and others to measure on."""
    from datasets import Dataset

    sizes = {"train": 600, "validation": 100}
    return {
        split: Dataset.from_dict({"text": _documents(np.random.default_rng(number), size)})
        for number, (split, size) in enumerate(sizes.items())
    }


def _documents(random: np.random.Generator, count: int) -> list[str]:
    return [_document(random) for _ in range(count)]


def _document(random: np.random.Generator) -> str:
    topic = [words.split() for words in TOPICS[random.integers(len(TOPICS))]]
    return " ".join(_sentence(random, topic) for _ in range(random.integers(3, 9)))


def _sentence(random: np.random.Generator, topic: Sequence[Sequence[str]]) -> str:
    plural = bool(random.integers(2))
    first = random.choice(PLURAL if plural else SINGULAR)
    adjective, noun, verb, place = (random.choice(words) for words in topic)
    noun, verb = (f"{noun}s", verb) if plural else (noun, f"{verb}s")
    return f"{first} {adjective} {noun} {verb} near the {place} ."
