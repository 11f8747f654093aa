"""Text to text: summaries and translations, generated and compared with the right ones at every evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from taskrecipe import (
    Batch,
    Column,
    Count,
    DataError,
    Direction,
    Judgment,
    Predict,
    Predictions,
    Recipe,
    Row,
    Scorer,
    Splits,
    Table,
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

METRICS = {"rouge": ("rouge1", "rouge2", "rougeL", "rougeLsum"), "bleu": ("bleu",)}
PACKAGES = {"rouge": "rouge_score", "bleu": "sacrebleu"}


class Languages(Table):
    """`[task.languages]`: which two texts of a column `translation` are meant."""

    source: Text = Field(description="The key of the text to translate, such as 'en'.")
    target: Text = Field(description="The key of its translation, such as 'ro'.")


class Seq2SeqOptions(TaskOptions):
    """Options of `seq2seq`."""

    metric: Literal["rouge", "bleu"] = Field(
        default="rouge", description="The metric of generated texts: rouge for summaries, bleu for translations."
    )
    prefix: Annotated[str, Field(max_length=4096)] = Field(
        default="", description="Text before every source; T5 needs 'summarize: ' or 'translate English to German: '."
    )
    source_length: Count = Field(default=512, le=1_000_000, description="Tokens that a source is truncated to.")
    target_length: Count = Field(
        default=128, le=1_000_000, description="Tokens that a target is truncated to, and tokens generated at most."
    )
    beams: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, description="Beams that are searched in generation; 1 takes the likeliest token every time."
    )
    languages: Languages | None = Field(
        default=None,
        description="For rows with one column `translation`, a text for each language: which two are meant.",
    )


class Seq2Seq(Recipe):
    """Text to text with an encoder and a decoder (T5, BART, Marian): summarization and translation.

    At every evaluation a text is generated for each row, deterministically, and compared with the whole right one:
    ROUGE (F-measures, with stemming) or BLEU (sacreBLEU's, over the corpus), both from 0 to 100. The loss is that of
    the right text's tokens.
    """

    Options = Seq2SeqOptions
    options: Seq2SeqOptions
    smooths_labels = True
    length_options: ClassVar = {"source_length": "input_ids", "target_length": "labels"}
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
    _needs_targets = False
    """Whether rows are to train on or to evaluate, not only to predict. A column `translation` doesn't say it."""

    @override
    def metrics(self) -> dict[str, Direction]:
        return dict.fromkeys(METRICS[self.options.metric], "max")

    @override
    def columns(self) -> dict[str, Column]:
        if self.options.languages:
            return {"translation": Column("texts of the same meaning by language: {en: ..., de: ...}")}
        return {"source": Column("the text that is given"), "target": Column("the text to make of it", target=True)}

    @override
    def sample(self, folder: Path) -> Splits:
        """Sentences with words of one kind, and all words of that kind as what to make of it."""
        from taskrecipe.text import vocabulary

        write_tiny_bart(folder, vocabulary())
        return {"train": self._sample_split(0, 512), "validation": self._sample_split(1, 64)}

    @override
    def learn(self, rows: Dataset) -> None:
        self._needs_targets = True

    @override
    def check(self, rows: Dataset, split: str) -> None:
        from taskrecipe.data import check_text

        pairs = self._extract_pairs(rows)
        if "target" in pairs.column_names:
            package = PACKAGES[self.options.metric]
            require_package(package, install="taskrecipe[text]", wanted_by=f"[task].metric = {self.options.metric!r}")
        elif self.options.languages and self._needs_targets:
            raise _missing_language(self.options.languages.target, rows)
        for column in pairs.column_names:
            check_text(pairs, split, column)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        from taskrecipe.text import require_length

        tokenizer = source.tokenizer()
        for key in ("source_length", "target_length"):
            require_length(source, tokenizer, f"[task].{key}", getattr(self.options, key))
        return tokenizer

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        """Tokenize sources and targets. The text of a target is kept: it is compared with what is generated."""
        from taskrecipe.data import map_rows

        return map_rows(self._extract_pairs(rows), self._tokenize, keep=["target"])

    @override
    def collate(self, rows: list[Row]) -> Batch:
        """Pad what the model takes. Texts are left out."""
        return super().collate([{name: value for name, value in row.items() if name != "target"} for row in rows])

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForSeq2SeqLM

        model: torch.nn.Module = source.model(AutoModelForSeq2SeqLM, **({} if source.has_weights else self._tokens()))
        return model

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Run the model on sources and targets. In evaluation also generate texts, as `generated` token ids."""
        if model.training:
            return model(**batch)
        # First: the logits of a batch need memory too.
        generated = self._generate(model, batch, Predict())
        outputs = model(**batch) if "labels" in batch else {}
        outputs["generated"] = generated
        return outputs

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        return {"text": self.processor.batch_decode(outputs["generated"], skip_special_tokens=True)}

    @override
    def infer(self, model: torch.nn.Module, batch: Batch) -> Predictions:
        """Generate texts as in an evaluation, unless `[predict]` says otherwise."""
        return self.predict({"generated": self._generate(model, batch, self.spec.predict)}, batch)

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        measure = rouge if self.options.metric == "rouge" else bleu
        return measure(predictions["text"], list(rows["target"]))

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        return {"text": prediction["text"]}

    @override
    def row_losses(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor] | None:
        return label_losses(outputs["logits"], batch["labels"]) if "labels" in batch else None

    @override
    def row_scores(self, predictions: Predictions, rows: Dataset) -> dict[str, Sequence[float]]:
        if self.options.metric != "rouge":
            return {}
        measured = measure_rouge(predictions["text"], list(rows["target"]))
        return {name: [100 * value for value in values] for name, values in measured.items()}

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        if self.options.metric == "rouge":
            return super().scorer(predictions, rows)
        from sacrebleu.metrics.bleu import BLEU

        metric = BLEU()
        counts = np.array(metric._extract_corpus_statistics(predictions["text"], [list(rows["target"])]))
        return lambda chosen: {"bleu": metric._compute_score_from_stats(counts[chosen].sum(0).tolist()).score}

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        if "target" not in row:
            return Judgment()
        return Judgment({"text": row["target"]}, correct=prediction["text"].split() == row["target"].split())

    @override
    def describe(self, example: Row) -> DescribedText:
        """Show the source's tokens in one line and the target's in another."""
        from taskrecipe import DescribedText
        from taskrecipe.text import describe_tokens

        lines = [describe_tokens(example["input_ids"], self.processor)]
        if "labels" in example:
            target = describe_tokens(example["labels"], self.processor)
            lines.append([replace(piece, role="target") if piece.role == "context" else piece for piece in target])
        return DescribedText(lines, names=["source", "target"][: len(lines)])

    def _generate(self, model: torch.nn.Module, batch: Batch, settings: Predict) -> torch.Tensor:
        from taskrecipe.text import Generation, generate_tokens

        longest, beams = settings.max_new_tokens or self.options.target_length, settings.beams or self.options.beams
        how = Generation(settings, longest, beams, self.spec.seed)
        return generate_tokens(model, batch["input_ids"], batch["attention_mask"], how)

    def _tokens(self) -> dict[str, int]:
        """Return what a model that starts from scratch must know of the tokenizer."""
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

    def _extract_pairs(self, rows: Dataset) -> Dataset:
        """Return the columns `source` and, if rows have it, `target`, also where they are in `translation`."""
        languages = self.options.languages
        if languages is None:
            return rows.select_columns([name for name in ("source", "target") if name in rows.column_names])
        if languages.source not in _languages(rows):
            raise _missing_language(languages.source, rows)
        keys = {"source": languages.source, "target": languages.target}
        names = {f"translation.{key}": name for name, key in keys.items() if key in _languages(rows)}
        return rows.select_columns(["translation"]).flatten().select_columns(list(names)).rename_columns(names)

    def _tokenize(self, rows: dict[str, list[Any]]) -> dict[str, Any]:
        sources = self.processor(
            [self.options.prefix + text for text in rows["source"]],
            truncation=True,
            max_length=self.options.source_length,
            return_token_type_ids=False,
        )
        if "target" not in rows:
            return dict(sources)
        targets = self.processor(text_target=rows["target"], truncation=True, max_length=self.options.target_length)
        return {**sources, "labels": targets["input_ids"]}

    def _sample_split(self, number: int, size: int) -> Dataset:
        from datasets import Dataset

        from taskrecipe.text import CUES, class_cues, sentence

        random = np.random.default_rng([self.spec.seed, number])
        kinds = [int(kind) for kind in random.integers(len(CUES), size=size)]
        sources = [sentence(random, class_cues(random, kind)) for kind in kinds]
        targets = [" ".join(CUES[kind]) for kind in kinds]
        if (languages := self.options.languages) is None:
            return Dataset.from_dict({"source": sources, "target": targets})
        pairs = zip(sources, targets, strict=True)
        return Dataset.from_dict({"translation": [{languages.source: s, languages.target: t} for s, t in pairs]})


def _languages(rows: Dataset) -> list[str]:
    found = rows.features["translation"]
    return list(found) if isinstance(found, dict) else []


def _missing_language(language: str, rows: Dataset) -> DataError:
    found = ", ".join(_languages(rows)) or "none"
    return DataError(f"there is no text for the language {language!r}; found {found}", column="translation")


def rouge(predicted: list[str], right: list[str]) -> dict[str, float]:
    """Return ROUGE-1, -2, -L and -Lsum: the mean F-measure over all pairs of texts, in percent."""
    measured = measure_rouge(predicted, right)
    return {name: 100 * math.fsum(values) / len(values) for name, values in measured.items()}


def measure_rouge(predicted: list[str], right: list[str]) -> dict[str, list[float]]:
    """Return the F-measure of each pair of texts, from 0 to 1."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(METRICS["rouge"], use_stemmer=True)
    scores = [scorer.score(target, text) for text, target in zip(predicted, right, strict=True)]
    return {name: [score[name].fmeasure for score in scores] for name in METRICS["rouge"]}


def bleu(predicted: list[str], right: list[str]) -> dict[str, float]:
    """Return the BLEU of the whole corpus, as sacreBLEU defines it."""
    from sacrebleu import corpus_bleu

    return {"bleu": corpus_bleu(predicted, [right]).score}


def write_tiny_bart(folder: Path, words: list[str]) -> None:
    """Write a BART of two narrow layers, without weights, and its tokenizer."""
    from transformers import BartConfig

    from taskrecipe.text import word_tokenizer

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
