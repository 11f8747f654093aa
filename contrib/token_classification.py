"""Token classification: a tag for each word, as in the recognition of named entities."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from taskrecipe import (
    IGNORED,
    PREDICT,
    Batch,
    Column,
    Count,
    DataError,
    Direction,
    Judgment,
    Predictions,
    Recipe,
    Row,
    Scorer,
    Splits,
    TaskOptions,
    Text,
    UsageError,
    label_losses,
    require_package,
)

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import DescribedText, ModelSource

NO_WORD = -1
"""Where a token begins no word."""

TEXTS = ("tokens", "text", "lost_words")
"""Columns of preprocessed rows that are not for the model."""

_WORD = re.compile(r"\w+|[^\w\s]+")


class TokenOptions(TaskOptions):
    """Options of `token_classification`."""

    max_length: Count = Field(
        default=256,
        le=1_000_000,
        description="Tokens that a row is truncated to; a warning says how many words are lost.",
    )
    pieces: Literal["first", "all"] = Field(
        default="first",
        description="Which tokens of a word learn its tag. Metrics and predictions use the first token alone.",
    )
    tags: list[Text] | None = Field(
        default=None,
        min_length=1,
        description="The tags' names in the order of their numbers, for rows that have numbers without names.",
    )


class TokenClassification(Recipe):
    """Token classification: a tag for each word, as in named-entity recognition (CoNLL-2003 and the like).

    A row is a list of words and a list of as many tags: names such as B-PER, or numbers with names. The model's
    tokenizer cuts words into tokens, and the first token (or every one) learns the tag of its word. Scores are
    seqeval's, over whole entities, and take tags as they come: an I- without a B- before it begins an entity, and
    neighboring words with the same tag and no prefix are one.
    """

    Options = TokenOptions
    options: TokenOptions
    smooths_labels = True
    length_options: ClassVar = {"max_length": "input_ids"}
    sample_settings: ClassVar = {
        "task.max_length": 64,
        "train.learning_rate": 1e-3,
        "train.epochs": 3,
        "train.batch_size": 16,
        "train.accumulate": 1,
    }

    @override
    def metrics(self) -> dict[str, Direction]:
        return {"f1": "max", "precision": "max", "recall": "max", "accuracy": "max"}

    @override
    def columns(self) -> dict[str, Column]:
        return {
            "tokens": Column("a list of words"),
            "tags": Column("a list of tags, one for each word", target=True),
        }

    @override
    def input_columns(self) -> dict[str, Column]:
        return {
            "tokens": Column("a list of words", required=False),
            "text": Column("instead of words: a text, cut at spaces and punctuation", required=False),
        }

    @override
    def sample(self, folder: Path) -> Splits:
        """Sentences in which some neighboring words are the name of a person or a place."""
        from taskrecipe.text import vocabulary, write_tiny_bert

        write_tiny_bert(folder, vocabulary())
        return {"train": self._sample_split(0, 512), "validation": self._sample_split(1, 128)}

    @override
    def learn(self, rows: Dataset) -> None:
        self.labels = self._tag_names(rows, "train") or _collect_tags(rows)
        if len(self.labels) < 2:
            raise DataError(f"there is nothing to tell apart: tags are {self.labels}", split="train", column="tags")

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_text, require_columns

        require_package("seqeval", install="taskrecipe[text]", wanted_by="recipe 'token_classification'")
        if split == PREDICT and "tokens" not in rows.column_names:
            require_columns(rows.column_names, {"text": Column("a text; or 'tokens', a list of its words")}, split)
            check_text(rows, split, "text")
            return
        _check_words(rows, split)
        tagged = "tags" in rows.column_names
        known = self._tag_numbers(rows, split) if tagged else None
        tags = rows["tags"] if tagged else repeat(None, len(rows))
        for number, (words, given) in enumerate(zip(rows["tokens"], tags, strict=True)):
            if problem := _find_problem(words, given, known):
                raise DataError(problem, split=split, row=number)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        """Load the tokenizer. If the model knows the same tags in another order, take over its order."""
        from taskrecipe.data import align_labels
        from taskrecipe.text import require_length

        self.labels = align_labels(self.labels, source.config())
        # Byte-level tokenizers give a word another token after a space, and all words but the first have one.
        tokenizer = source.tokenizer(add_prefix_space=True)
        if not tokenizer.is_fast:
            raise UsageError("token_classification needs a fast tokenizer, which knows which word a token belongs to")
        require_length(source, tokenizer, "[task].max_length", self.options.max_length)
        return tokenizer

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Tokenize words, and keep which word each token begins. Of the words, those are kept that the model sees."""
        from taskrecipe.data import map_rows

        if split == PREDICT and "tokens" not in rows.column_names:
            rows = map_rows(rows, _cut_words, keep=["text"])
        tagged = "tags" in rows.column_names
        every_piece = self.options.pieces == "all" and split == "train"
        numbers = self._tag_numbers(rows, split) if tagged else {}
        tokenize = partial(self._tokenize, numbers=numbers, every_piece=every_piece)
        tokenized = map_rows(rows, tokenize, keep=["tokens", "text"])
        lost, words = sum(tokenized["lost_words"]), sum(map(len, rows["tokens"]))
        if lost == words and tagged:
            raise DataError("no word is left to predict a tag of; is [task].max_length too small?", split=split)
        if lost:
            warnings.warn(
                f"{split}: {lost} of {words} words are blank or beyond [task].max_length: they get no tag",
                stacklevel=2,
            )
        return tokenized

    @override
    def collate(self, rows: list[Row]) -> Batch:
        """Pad what the model takes and which word each token begins. The words themselves are left out."""
        return super().collate([{k: v for k, v in row.items() if k not in TEXTS} for row in rows])

    @override
    def padding(self) -> dict[str, int]:
        return {**super().padding(), "word_starts": NO_WORD}

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForTokenClassification

        model: torch.nn.Module = source.model(AutoModelForTokenClassification, id2label=dict(enumerate(self.labels)))
        return model

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> Any:
        return model(**{name: value for name, value in batch.items() if name != "word_starts"})

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        """Return the likeliest tag of each word that the model sees."""
        predicted, starts = outputs.logits.argmax(-1).cpu().numpy(), batch["word_starts"].cpu().numpy()
        return {"tags": [row[words != NO_WORD] for row, words in zip(predicted, starts, strict=True)]}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        """Compare entities over the whole split. An entity is right only as a whole."""
        from seqeval.metrics import accuracy_score
        from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

        predicted, right = self._pair_tags(predictions, rows)
        precision, recall, f1, _ = precision_recall_fscore_support(right, predicted, average="micro", zero_division=0)
        return {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy_score(right, predicted)}

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        """Return the tag of each word, and the entities with their characters in `text`.

        `text` is the row's, or its words joined by spaces. A blank word has no tag. `lost_words` counts blank words
        and those beyond `max_length`.
        """
        named = self._name_tags(prediction["tags"], row)
        return {"text": _text_of(row), "words": row["tokens"], **named, "lost_words": row["lost_words"]}

    @override
    def row_losses(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor] | None:
        return label_losses(outputs.logits, batch["labels"]) if "labels" in batch else None

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        """Count entities and words of each row once; what is chosen is only summed up."""
        counts = np.array([_count_matches(*pair) for pair in zip(*self._pair_tags(predictions, rows), strict=True)])

        def score(chosen: NDArray[Any]) -> dict[str, float]:
            both, predicted, there, right, words = counts[chosen].sum(0).tolist()
            return {
                "f1": 2 * both / (predicted + there) if both else 0.0,
                "precision": both / predicted if predicted else 0.0,
                "recall": both / there if there else 0.0,
                "accuracy": right / words if words else math.nan,
            }

        return score

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        if "labels" not in row:
            return Judgment()
        right = _labels_of_words(row["labels"], row["word_starts"])
        return Judgment(self._name_tags(right, row), correct=bool(np.array_equal(prediction["tags"], right)))

    @override
    def describe(self, example: Row) -> DescribedText:
        from taskrecipe import DescribedText
        from taskrecipe.text import describe_tokens

        pieces = describe_tokens(example["input_ids"], self.processor)
        labels = example.get("labels", [IGNORED] * len(pieces))
        return DescribedText(
            [
                [
                    piece if label == IGNORED else replace(piece, role="trained", note=self.labels[label])
                    for piece, label in zip(pieces, labels, strict=True)
                ]
            ]
        )

    def _pair_tags(self, predictions: Predictions, rows: Dataset) -> tuple[list[list[str]], list[list[str]]]:
        """Return the predicted and the right tags of each row's words, as seqeval takes them."""
        names = np.array([_add_prefix(name) for name in self.labels])
        right = zip(rows["labels"], rows["word_starts"], strict=True)
        return (
            [names[row].tolist() for row in predictions["tags"]],
            [names[_labels_of_words(labels, starts)].tolist() for labels, starts in right],
        )

    def _name_tags(self, tags: Any, row: Row) -> Row:
        """Return the name of each word's tag, and the entities that the tags make up."""
        from seqeval.metrics.sequence_labeling import get_entities

        words, seen = row["tokens"], [word for word in row["word_starts"] if word != NO_WORD]
        names = [self.labels[int(tag)] for tag in tags]
        by_word = dict(zip(seen, names, strict=True))
        found = get_entities([_add_prefix(name) for name in names])
        text = _text_of(row)
        places = [match.span() for match in _WORD.finditer(text)] if row.get("text") else _place_words(words)
        return {
            "tags": [by_word.get(number) for number in range(len(words))],
            "entities": [_locate_entity(text, places, kind, seen[first], seen[last]) for kind, first, last in found],
        }

    def _tag_names(self, rows: Dataset, split: str) -> list[str] | None:
        """Return the names that numbers in `rows` stand for; None where tags are names themselves."""
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

    def _tag_numbers(self, rows: Dataset, split: str) -> dict[Any, int]:
        """Return our number of each tag, by what stands for it in `rows`. Unknown tags are left out."""
        ours = {name: number for number, name in enumerate(self.labels)}
        names = self._tag_names(rows, split)
        return {i: ours[name] for i, name in enumerate(names) if name in ours} if names else ours

    def _tokenize(self, rows: dict[str, list[Any]], numbers: dict[Any, int], every_piece: bool) -> dict[str, list[Any]]:
        tokens = self.processor(
            rows["tokens"], is_split_into_words=True, truncation=True, max_length=self.options.max_length
        )
        starts = [_find_word_starts(tokens.word_ids(number)) for number in range(len(rows["tokens"]))]
        seen = [
            words[: int(start.max(initial=NO_WORD)) + 1] for words, start in zip(rows["tokens"], starts, strict=True)
        ]
        lost = [len(words) - int((start != NO_WORD).sum()) for words, start in zip(rows["tokens"], starts, strict=True)]
        made = {**tokens, "word_starts": starts, "tokens": seen, "lost_words": lost}
        if "tags" in rows:
            made["labels"] = [
                _spread_tags([numbers[tag] for tag in tags], tokens.word_ids(number) if every_piece else starts[number])
                for number, tags in enumerate(rows["tags"])
            ]
        return made

    def _sample_split(self, number: int, size: int) -> Dataset:
        from datasets import ClassLabel, Dataset, Features, List, Value

        from taskrecipe.text import CUES, sentence

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


def _collect_tags(rows: Dataset) -> list[str]:
    """Return every tag that occurs, sorted by letters."""
    return sorted({tag for row in rows["tags"] for tag in row or () if tag is not None})


def _find_problem(words: list[str | None] | None, tags: list[Any] | None, known: dict[Any, int] | None) -> str | None:
    """Return what is wrong with a row, if anything is. Tags are not looked at unless there are `known` ones."""
    if words is None or None in words:
        return "a word is missing"
    if known is None:
        return None
    if len(tags or ()) != len(words):
        return f"every word needs a tag; found {len(words)} words and {len(tags or ())} tags"
    unknown = [tag for tag in tags or () if tag not in known]
    return (
        f"tag {unknown[0]!r} is not one of the training rows' tags: {', '.join(map(str, known))}" if unknown else None
    )


def _find_word_starts(word_ids: list[int | None]) -> NDArray[np.int32]:
    """Return for each token the number of the word that it begins; NO_WORD for all other tokens."""
    words = _fill_gaps(word_ids)
    return np.where(np.diff(words, prepend=NO_WORD) != 0, words, NO_WORD)


def _spread_tags(tags: list[int], words: Any) -> NDArray[np.int64]:
    """Return for each token the tag of its word, and IGNORED for tokens of no word."""
    return np.array([*tags, IGNORED])[_fill_gaps(words)]  # NO_WORD is -1, the last one


def _fill_gaps(word_ids: Any) -> NDArray[np.int32]:
    return np.array([NO_WORD if word is None else word for word in word_ids], dtype=np.int32)


def _labels_of_words(labels: Any, starts: Any) -> NDArray[np.int64]:
    """Return the label of each word, which its first token has."""
    own: NDArray[np.int64] = np.asarray(labels)[np.asarray(starts) != NO_WORD]
    return own


def _count_matches(predicted: list[str], right: list[str]) -> tuple[int, int, int, int, int]:
    """Count the entities that are right, predicted and there, the words whose tag is right, and all words."""
    from seqeval.metrics.sequence_labeling import get_entities

    found, there = set(get_entities(predicted)), set(get_entities(right))
    same = sum(one == other for one, other in zip(predicted, right, strict=True))
    return len(found & there), len(found), len(there), same, len(right)


def _cut_words(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Cut texts into words, and every run of punctuation is one too, as corpora of entities have them."""
    return {"tokens": [_WORD.findall(text) for text in rows["text"]]}


def _text_of(row: Row) -> str:
    """Return the row's text, or its words joined by spaces."""
    return row.get("text") or " ".join(row["tokens"])


def _place_words(words: list[str]) -> list[tuple[int, int]]:
    """Return the first character of each word and the one after its last, where words are joined by spaces."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return [(int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True)]


def _locate_entity(text: str, places: list[tuple[int, int]], kind: str, first: int, last: int) -> Row:
    """Return an entity from its `first` to its `last` word, with its characters in the text."""
    start, end = places[first][0], places[last][1]
    return {"type": kind, "text": text[start:end], "start": start, "end": end, "words": [first, last]}


def _add_prefix(tag: str) -> str:
    """Return the tag as seqeval takes it: it must say whether an entity begins or goes on."""
    return tag if tag == "O" or re.match("[BIES](-|$)", tag) else f"I-{tag}"
