"""Reward models: a number for each conversation, higher for the better of two answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from taskrecipe import Batch, Column, Predictions, Row, Splits
from taskrecipe.contrib.chat.options import ConversationOptions
from taskrecipe.contrib.chat.pair_recipe import PairRecipe
from taskrecipe.contrib.chat.pairs import COLUMNS, collate_pairs, encode_pairs, read_pair, read_sides
from taskrecipe.contrib.chat.preparation import check_rows, find_end_of_turn, load_chat_tokenizer

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import ModelSource


class RewardOptions(ConversationOptions):
    """Options of `reward`."""

    centering: Annotated[float, Field(ge=0.0, le=1000.0)] = Field(
        default=0.0, description="Weight of the squared sum of both scores, which keeps scores around 0."
    )


class Reward(PairRecipe):
    """A reward model: a causal model with a scalar head, trained on pairs of a better and a worse answer.

    Rows have a prompt, a chosen and a rejected answer, or two whole conversations. The loss is that of Bradley and
    Terry: the score of the chosen answer should be higher. As a scorer it takes rows with a single answer in `chosen`
    (`[data.columns] chosen = "messages"` for whole conversations), and `recipe predict` gives the score of each.
    """

    Options = RewardOptions
    options: RewardOptions
    sample_settings: ClassVar = {**PairRecipe.sample_settings, "train.epochs": 6}
    _needs_pairs = False
    """Whether rows are to train on or to evaluate, not only to score."""

    @override
    def columns(self) -> dict[str, Column]:
        return dict(COLUMNS)

    @override
    def sample(self, folder: Path) -> Splits:
        """Make questions with a right and a wrong answer, and a tiny model that knows neither."""
        from taskrecipe.contrib.chat.sample import make_pairs, write_tiny_llama

        write_tiny_llama(folder)
        return make_pairs(self.spec.seed, 512, 64)

    @override
    def learn(self, rows: Dataset) -> None:
        self._needs_pairs = True

    @override
    def check(self, rows: Dataset, split: str) -> None:
        check_rows(rows, split, "chosen", read_pair if self._needs_pairs else read_sides)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        return load_chat_tokenizer(source, self.options)

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        return encode_pairs(rows, self.processor, self.options, split)

    @override
    def collate(self, rows: list[Row]) -> Batch:
        batch = collate_pairs(rows, self._pad_id)
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForSequenceClassification

        # The model reads its score at the last token that is not padding, so it must know the padding token.
        values = {} if source.exported else {"num_labels": 1, "pad_token_id": self._pad_id}
        model: torch.nn.Module = source.model(AutoModelForSequenceClassification, **values)
        return model

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Return the score of each answer: rows x answers."""
        shape = batch["input_ids"].shape[:2]
        flat = {name: batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask")}
        logits = model(**flat, use_cache=False).logits
        return {"rewards": logits.view(shape)}

    @override
    def predict(self, outputs: Any, batch: Batch) -> Predictions:
        return {"rewards": outputs["rewards"]}

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        scores = [float(score) for score in prediction["rewards"]]
        if len(scores) == 1:
            return {"score": scores[0]}
        return {"score": scores[0], "rejected": scores[1], "margin": scores[0] - scores[1]}

    @override
    def pair_losses(self, outputs: Any, batch: Batch) -> torch.Tensor:
        from torch.nn.functional import logsigmoid

        chosen, rejected = outputs["rewards"].unbind(-1)
        centered: torch.Tensor = self.options.centering * (chosen + rejected) ** 2
        return centered - logsigmoid(chosen - rejected)

    @property
    def _pad_id(self) -> int:
        known = [self.processor.pad_token_id, find_end_of_turn(self.processor), self.processor.eos_token_id]
        return next((token for token in known if token is not None), 0)
