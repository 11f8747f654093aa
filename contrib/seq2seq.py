"""Text to text: summaries and translations, generated and compared with the right ones at every evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from taskrecipe.core.errors import DataError, UsageError
from taskrecipe.core.recipe import Batch, Column, Direction, Recipe, Row, Splits
from taskrecipe.core.spec.table import Count, Table, TaskOptions, Text

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource

METRICS = {"rouge": ("rouge1", "rouge2", "rougeL", "rougeLsum"), "bleu": ("bleu",)}
PACKAGES = {"rouge": "rouge_score", "bleu": "sacrebleu"}


class Languages(Table):
    """`[task.languages]`: which two texts of a column `translation` are meant."""

    source: Text = Field(description="The key of the text to translate, such as 'en'.")
    target: Text = Field(description="The key of its translation, such as 'ro'.")


class Seq2SeqOptions(TaskOptions):
    """Options of `seq2seq`."""

    metric: Literal["rouge", "bleu"] = Field(
        default="rouge", description="How what is generated is measured: rouge for summaries, bleu for translations."
    )
    prefix: Annotated[str, Field(max_length=4096)] = Field(
        default="", description="Put before every source; T5 wants 'summarize: ' or 'translate English to German: '."
    )
    source_length: Count = Field(default=512, le=1_000_000, description="Tokens a source is cut off at.")
    target_length: Count = Field(
        default=128, le=1_000_000, description="Tokens a target is cut off at, and tokens generated at most."
    )
    beams: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="Beams that are searched when generating; 1 takes the likeliest token every time."
    )
    languages: Languages | None = Field(
        default=None,
        description="For rows with one column `translation`, a text for each language: which two are meant.",
    )


class Seq2Seq(Recipe):
    """Text to text with an encoder and a decoder (T5, BART, Marian): summarisation and translation.

    At every evaluation a text is generated for each row, deterministically, and compared with the whole right one:
    ROUGE (F-measures, with stemming) or BLEU (sacreBLEU's, over the corpus), both from 0 to 100. The loss is that of
    the right text's tokens.
    """

    Options = Seq2SeqOptions
    options: Seq2SeqOptions
    smooths_labels = True
    sample_settings: ClassVar = {
        "task.beams": 1,
        "task.source_length": 32,
        "task.target_length": 16,
        "train.learning_rate": 2e-3,
        "train.epochs": 4,
        "train.batch_size": 16,
        "train.accumulate": 1,
        "schedule.warmup": 0.1,
    }

    def metrics(self) -> dict[str, Direction]:
        """The numbers of the chosen metric."""
        return dict.fromkeys(METRICS[self.options.metric], "max")

    def columns(self) -> dict[str, Column]:
        """A text, and the one to make of it."""
        if self.options.languages:
            return {"translation": Column("texts of the same meaning by language: {en: ..., de: ...}")}
        return {"source": Column("the text that is given"), "target": Column("the text to make of it")}

    def sample(self, folder: Path) -> Splits:
        """Sentences with words of one kind, and all words of that kind as what to make of it."""
        from taskrecipe.core.sample_text import vocabulary

        write_tiny_bart(folder, vocabulary())
        return {"train": self._sample_split(0, 512), "validation": self._sample_split(1, 64)}

    def check(self, splits: Splits) -> None:
        """Sources and targets must be text."""
        from taskrecipe.core.data.text import check_text
        from taskrecipe.core.extras import require

        package = PACKAGES[self.options.metric]
        require(package, install="taskrecipe[text]", wanted_by=f"[task].metric = {self.options.metric!r}")
        for split, rows in splits.items():
            for column in ("source", "target"):
                check_text(self._flat(rows), split, column)

    def load_processor(self, source: ModelSource) -> Any:
        """The model's tokenizer."""
        from taskrecipe.core.fit import require_length

        tokenizer = source.tokenizer()
        for key in ("source_length", "target_length"):
            require_length(source, tokenizer, f"[task].{key}", getattr(self.options, key))
        return tokenizer

    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Tokenize sources and targets; the right text itself is kept to be compared with."""
        from taskrecipe.core.data.cache import map_rows

        return map_rows(self._flat(rows), self._tokenize, keep=["target"])

    def collate(self, rows: list[Row]) -> Batch:
        """Pad what the model takes; texts stay behind."""
        return super().collate([{name: value for name, value in row.items() if name != "target"} for row in rows])

    def load_model(self, source: ModelSource) -> torch.nn.Module:
        """An encoder and decoder with a head for tokens."""
        from transformers import AutoModelForSeq2SeqLM

        model: torch.nn.Module = source.model(AutoModelForSeq2SeqLM, **({} if source.has_weights else self._tokens()))
        return model

    def predictions(self, model: torch.nn.Module, batch: Batch, outputs: Any) -> dict[str, Any]:
        """A text generated for each row."""
        from accelerate.utils import extract_model_from_parallel

        generated = extract_model_from_parallel(model).generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=self.options.target_length,
            num_beams=self.options.beams,
            do_sample=False,
        )
        return {"texts": self.processor.batch_decode(generated, skip_special_tokens=True)}

    def score(self, predictions: dict[str, Any], rows: Dataset) -> dict[str, float]:
        """ROUGE or BLEU of all generated texts."""
        measure = rouge if self.options.metric == "rouge" else bleu
        return measure(predictions["texts"], list(rows["target"]))

    def _tokens(self) -> dict[str, int]:
        """What a model that starts from scratch must know of the tokenizer."""
        tokenizer = self.processor
        end = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        if tokenizer.pad_token_id is None or end is None:
            raise UsageError("seq2seq needs a tokenizer with a padding token and one that ends a text")
        return {
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": end,
            "decoder_start_token_id": tokenizer.pad_token_id,
        }

    def _flat(self, rows: Dataset) -> Dataset:
        """The rows with columns `source` and `target`, wherever these are."""
        languages = self.options.languages
        if languages is None:
            return rows
        found = rows.features["translation"]
        keys = list(found) if isinstance(found, dict) else []
        for language in (languages.source, languages.target):
            if language not in keys:
                there = ", ".join(keys) or "none"
                raise DataError(f"there is no text for the language {language!r}; found {there}", column="translation")
        names = {f"translation.{languages.source}": "source", f"translation.{languages.target}": "target"}
        return rows.select_columns(["translation"]).flatten().select_columns(list(names)).rename_columns(names)

    def _tokenize(self, rows: dict[str, list[Any]]) -> dict[str, Any]:
        sources = self.processor(
            [self.options.prefix + text for text in rows["source"]],
            truncation=True,
            max_length=self.options.source_length,
            return_token_type_ids=False,
        )
        targets = self.processor(text_target=rows["target"], truncation=True, max_length=self.options.target_length)
        return {**sources, "labels": targets["input_ids"]}

    def _sample_split(self, number: int, size: int) -> Dataset:
        from datasets import Dataset

        from taskrecipe.core.sample_text import CUES, class_cues, sentence

        random = np.random.default_rng([self.spec.seed, number])
        kinds = [int(kind) for kind in random.integers(len(CUES), size=size)]
        sources = [sentence(random, class_cues(random, kind)) for kind in kinds]
        targets = [" ".join(CUES[kind]) for kind in kinds]
        if (languages := self.options.languages) is None:
            return Dataset.from_dict({"source": sources, "target": targets})
        pairs = zip(sources, targets, strict=True)
        return Dataset.from_dict({"translation": [{languages.source: s, languages.target: t} for s, t in pairs]})


def rouge(predicted: list[str], right: list[str]) -> dict[str, float]:
    """ROUGE-1, -2, -L and -Lsum: the mean F-measure over all pairs of texts, in percent."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(METRICS["rouge"], use_stemmer=True)
    scores = [scorer.score(target, text) for text, target in zip(predicted, right, strict=True)]
    return {name: 100 * math.fsum(score[name].fmeasure for score in scores) / len(scores) for name in METRICS["rouge"]}


def bleu(predicted: list[str], right: list[str]) -> dict[str, float]:
    """BLEU of the whole corpus, as sacreBLEU defines it."""
    from sacrebleu import corpus_bleu

    return {"bleu": corpus_bleu(predicted, [right]).score}


def write_tiny_bart(folder: Path, words: list[str]) -> None:
    """Write a BART of two narrow layers, without weights, and its tokenizer."""
    from transformers import BartConfig

    from taskrecipe.core.sample_text import word_tokenizer

    tokenizer = word_tokenizer(words)
    tokenizer.save_pretrained(folder)
    layers: dict[str, Any] = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 128))
    }
    BartConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=64,
        d_model=64,
        bos_token_id=tokenizer.cls_token_id,
        forced_eos_token_id=tokenizer.sep_token_id,
        **layers,
    ).save_pretrained(folder)
