"""Token classification: a tag for each word, as in the recognition of named entities."""

from __future__ import annotations

import re
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from taskrecipe.core.errors import DataError, UsageError
from taskrecipe.core.recipe import Batch, Column, Direction, Recipe, Splits
from taskrecipe.core.spec.table import Count, TaskOptions, Text

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource

IGNORED = -100
"""The label of a token that is not predicted."""


class TokenOptions(TaskOptions):
    """Options of `token_classification`."""

    max_length: Count = Field(
        default=256, le=1_000_000, description="Tokens a row is cut off at; the words lost by it are counted and told."
    )
    pieces: Literal["first", "all"] = Field(
        default="first", description="Which pieces of a word learn its tag. Measured is always the first alone."
    )
    tags: list[Text] | None = Field(
        default=None,
        min_length=1,
        description="The tags' names in the order of their numbers, for rows that have numbers without names.",
    )


class TokenClassification(Recipe):
    """Token classification: a tag for each word, as in named-entity recognition (CoNLL-2003 and its kin).

    A row is a list of words and a list of as many tags: names such as B-PER, or numbers with names. Words are cut
    into pieces by the model's tokenizer, and the first piece (or every one) learns the tag of its word. Scores are
    seqeval's, over whole entities, and take tags as they come: an I- without a B- before it begins an entity, and
    neighbouring words with the same tag and no prefix are one.
    """

    Options = TokenOptions
    options: TokenOptions
    smooths_labels = True
    sample_settings: ClassVar = {
        "task.max_length": 64,
        "train.learning_rate": 1e-3,
        "train.epochs": 3,
        "train.batch_size": 16,
        "train.accumulate": 1,
    }

    def metrics(self) -> dict[str, Direction]:
        """F1, precision and recall of entities, and the share of words with the right tag."""
        return {"f1": "max", "precision": "max", "recall": "max", "accuracy": "max"}

    def columns(self) -> dict[str, Column]:
        """The words and their tags."""
        return {"tokens": Column("a list of words"), "tags": Column("a list of tags, one for each word")}

    def sample(self, folder: Path) -> Splits:
        """Sentences in which some neighbouring words are the name of a person or a place."""
        from taskrecipe.core.sample_text import vocabulary, write_tiny_bert

        write_tiny_bert(folder, vocabulary())
        return {"train": self._sample_split(0, 512), "validation": self._sample_split(1, 128)}

    def check(self, splits: Splits) -> None:
        """Words must be text, each with a tag that has a name and that training has seen."""
        from taskrecipe.core.extras import require

        require("seqeval", install="taskrecipe[text]", wanted_by="recipe 'token_classification'")
        self.labels = self._tag_names(splits["train"], "train") or _seen(splits["train"])
        if len(self.labels) < 2:
            raise DataError(f"there is nothing to tell apart: tags are {self.labels}", split="train", column="tags")
        for split, rows in splits.items():
            _check_words(rows, split)
            known = self._numbers(rows, split)
            for number, (words, tags) in enumerate(zip(rows["tokens"], rows["tags"], strict=True)):
                if problem := _problem(words, tags, known):
                    raise DataError(problem, split=split, row=number)

    def load_processor(self, source: ModelSource) -> Any:
        """The model's tokenizer; here the model's own order of the tags is taken over, if it has one."""
        from taskrecipe.core.data.labels import align_labels
        from taskrecipe.core.fit import require_length

        self.labels = align_labels(self.labels, source.config())
        # A word is preceded by a space, and byte-level tokenizers tell the two apart.
        tokenizer = source.tokenizer(add_prefix_space=True)
        if not tokenizer.is_fast:
            raise UsageError("token_classification needs a fast tokenizer, which knows which word a piece belongs to")
        require_length(source, tokenizer, "[task].max_length", self.options.max_length)
        return tokenizer

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Cut words into pieces, and give each piece its label."""
        from taskrecipe.core.data.cache import map_rows

        every_piece = self.options.pieces == "all" and split == "train"
        tokenize = partial(self._tokenize, numbers=self._numbers(rows, split), every_piece=every_piece)
        tokenized = map_rows(rows, tokenize)
        lost, words = sum(tokenized["lost"]), sum(map(len, rows["tags"]))
        if lost == words:
            raise DataError("no word is left to predict a tag of; is [task].max_length too small?", split=split)
        if lost:
            warnings.warn(
                f"{split}: {lost} of {words} words are blank or beyond [task].max_length: neither trained nor scored",
                stacklevel=2,
            )
        return tokenized.remove_columns("lost")

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """A token classifier with the names of the tags."""
        from transformers import AutoModelForTokenClassification

        model: torch.nn.Module = source.model(AutoModelForTokenClassification, id2label=dict(enumerate(self.labels)))
        return model

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """The likeliest tag of each word, and the right one."""
        predicted, right = outputs.logits.argmax(-1).cpu().numpy(), batch["labels"].cpu().numpy()
        words = right != IGNORED
        return {
            "predictions": [row[kept] for row, kept in zip(predicted, words, strict=True)],
            "references": [row[kept] for row, kept in zip(right, words, strict=True)],
        }

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """Compare entities, each right only as a whole, over the whole split."""
        from seqeval.metrics import accuracy_score
        from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

        names = np.array([_with_prefix(name) for name in self.labels])
        right, predicted = ([names[row].tolist() for row in predictions[k]] for k in ("references", "predictions"))
        precision, recall, f1, _ = precision_recall_fscore_support(right, predicted, average="micro", zero_division=0)
        return {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy_score(right, predicted)}

    def _tag_names(self, rows: Dataset, split: str) -> list[str] | None:
        """The names that numbers in `rows` stand for; None where tags are names themselves."""
        from datasets import ClassLabel, Value

        kind = getattr(rows.features["tags"], "feature", None)
        if isinstance(kind, ClassLabel):
            return list(kind.names)
        if isinstance(kind, Value) and kind.dtype.startswith("int") and self.options.tags:
            return self.options.tags
        if isinstance(kind, Value) and kind.dtype in ("string", "large_string"):
            return None
        raise DataError(
            "tags must be a list of names, or of numbers whose names are in the data or in [task].tags; "
            f"found {rows.features['tags']}",
            split=split,
            column="tags",
        )

    def _numbers(self, rows: Dataset, split: str) -> dict[Any, int]:
        """Our number of each tag, by what stands for it in `rows`; those that training hasn't seen have none."""
        ours = {name: number for number, name in enumerate(self.labels)}
        names = self._tag_names(rows, split)
        return {i: ours[name] for i, name in enumerate(names) if name in ours} if names else ours

    def _tokenize(self, rows: dict[str, list[Any]], numbers: dict[Any, int], every_piece: bool) -> dict[str, list[Any]]:
        tokens = self.processor(
            rows["tokens"], is_split_into_words=True, truncation=True, max_length=self.options.max_length
        )
        labels, lost = [], []
        for number, row in enumerate(rows["tags"]):
            tags = np.array([numbers[tag] for tag in row] + [IGNORED])
            words = np.array([-1 if word is None else word for word in tokens.word_ids(number)])
            begins = (words != -1) & (np.diff(words, prepend=-1) != 0)
            labels.append(np.where((words != -1) if every_piece else begins, tags[words], IGNORED))
            lost.append(len(row) - int(begins.sum()))
        return {**tokens, "labels": labels, "lost": lost}

    def _sample_split(self, number: int, size: int) -> Dataset:
        from datasets import ClassLabel, Dataset, Features, List, Value

        from taskrecipe.core.sample_text import CUES, sentence

        random = np.random.default_rng([self.spec.seed, number])
        tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
        rows: dict[str, list[Any]] = {"tokens": [], "tags": []}
        for _ in range(size):
            words, numbers = [], []
            for kind in random.permutation(2)[: int(random.integers(3))]:
                plain = sentence(random, length=4).split()
                name = [str(random.choice(CUES[kind][:2])), str(random.choice(CUES[kind][2:]))][: random.integers(1, 3)]
                words += [*plain, *name]
                numbers += [0] * len(plain) + [2 * int(kind) + 1, 2 * int(kind) + 2][: len(name)]
            ending = sentence(random, length=4).split()
            rows["tokens"].append(words + ending)
            rows["tags"].append(numbers + [0] * len(ending))
        features = Features({"tokens": List(Value("string")), "tags": List(ClassLabel(names=tags))})
        return Dataset.from_dict(rows, features=features)


def _check_words(rows: Dataset, split: str) -> None:
    kind = getattr(rows.features["tokens"], "feature", None)
    if getattr(kind, "dtype", None) not in ("string", "large_string"):
        raise DataError(
            f"tokens must be a list of words; found {rows.features['tokens']}", split=split, column="tokens"
        )


def _seen(rows: Dataset) -> list[str]:
    """Every tag that occurs, in the order of the alphabet."""
    return sorted({tag for row in rows["tags"] for tag in row or () if tag is not None})


def _problem(words: list[str | None] | None, tags: list[Any] | None, known: dict[Any, int]) -> str | None:
    """What is wrong with a row, if anything is."""
    if words is None or None in words:
        return "a word is missing"
    if len(tags or ()) != len(words):
        return f"every word needs a tag; found {len(words)} words and {len(tags or ())} tags"
    unknown = [tag for tag in tags or () if tag not in known]
    return (
        f"tag {unknown[0]!r} is not one of the training rows' tags: {', '.join(map(str, known))}" if unknown else None
    )


def _with_prefix(tag: str) -> str:
    """The tag as seqeval takes it, which must say whether an entity begins or goes on."""
    return tag if tag == "O" or re.match("[BIES](-|$)", tag) else f"I-{tag}"
