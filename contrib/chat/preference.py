"""Learning from preferences: pairs of a better and a worse answer, without a reward model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from taskrecipe import IGNORED, Batch, Column, Direction, Predictions, Row, Splits, UsageError
from taskrecipe.contrib.chat.options import ConversationOptions
from taskrecipe.contrib.chat.pair_recipe import PairRecipe
from taskrecipe.contrib.chat.pairs import COLUMNS, SIDES, collate_pairs, encode_pairs, read_pair
from taskrecipe.contrib.chat.preference_losses import dpo_loss, ipo_loss, orpo_loss, simpo_loss
from taskrecipe.contrib.chat.preparation import check_rows, load_chat_tokenizer
from taskrecipe.contrib.chat.reference import add_reference, digest_weights
from taskrecipe.text import compute_nll, find_projection, run_model

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import ModelSource
    from taskrecipe.text import Projection

WITH_REFERENCE = ("dpo", "ipo")


class PreferenceOptions(ConversationOptions):
    """Options of `preference`."""

    loss: Literal["dpo", "ipo", "simpo", "orpo"] = Field(
        default="dpo",
        description="dpo and ipo compare with the model that training starts from; simpo and orpo need no reference.",
    )
    beta: Annotated[float, Field(gt=0.0, le=1000.0)] = Field(
        default=0.1,
        description="dpo, ipo: how close to the reference the model stays. simpo: scale of the rewards, about 2. "
        "orpo: weight of the odds' ratio.",
    )
    mislabeled: Annotated[float, Field(ge=0.0, lt=0.5)] = Field(
        default=0.0, description="dpo, simpo: share of pairs whose labels are taken to be wrong (conservative DPO)."
    )
    gap: Annotated[float, Field(ge=0.0, le=1000.0)] = Field(
        default=0.5, description="simpo: by how much the better answer's reward should be higher."
    )

    @model_validator(mode="after")
    def _some_losses_smooth(self) -> PreferenceOptions:
        if self.mislabeled and self.loss not in ("dpo", "simpo"):
            raise ValueError(f"mislabeled is for loss = 'dpo' or 'simpo', not {self.loss!r}")
        return self


@dataclass
class PairOutputs:
    """The log probability of both answers of each row, and their tokens: rows x 2."""

    log_probs: torch.Tensor
    tokens: torch.Tensor


class Preference(PairRecipe):
    """Learning from preferences (DPO, IPO, SimPO, ORPO): the better of two answers becomes likelier than the worse.

    Rows have a prompt, a chosen and a rejected answer, or two whole conversations. For dpo and ipo the log
    probabilities under the model that training starts from are computed once before training and cached, so no second
    model stays in memory; with an adapter (technique `lora`) the reference is the model without it. `accuracy` is the
    share of pairs with a positive margin, `margin` the mean difference of rewards, and `kl` an estimate of how far the
    model has moved from the reference, per token of the chosen answers.
    """

    Options = PreferenceOptions
    options: PreferenceOptions
    learned = ("labels", "reference")
    sample_settings: ClassVar = {**PairRecipe.sample_settings, "train.epochs": 4}
    _source: ModelSource
    _projection: Projection

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.reference: dict[str, str] = {}
        """The model whose log probabilities are compared with: its name and a hash of its weights."""

    @override
    def metrics(self) -> dict[str, Direction]:
        return {**super().metrics(), "kl": "min"} if self._has_reference else super().metrics()

    @override
    def columns(self) -> dict[str, Column]:
        return {**COLUMNS, "rejected": replace(COLUMNS["rejected"], required=True)}

    @override
    def sample(self, folder: Path) -> Splits:
        """Make questions with a right and a wrong answer, and a tiny model that knows neither."""
        from taskrecipe.contrib.chat.sample import make_pairs, write_tiny_llama, write_weights

        write_tiny_llama(folder)
        write_weights(folder, self.spec.seed)
        return make_pairs(self.spec.seed, 384, 64)

    @override
    def check(self, rows: Dataset, split: str) -> None:
        check_rows(rows, split, "chosen", read_pair)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        self._source = source
        if self._has_reference and not self.reference:  # else it has learned from which model it was trained
            if not source.has_weights:
                raise UsageError(
                    f"[task].loss = {self.options.loss!r} compares with a trained model, and {source.name!r} "
                    "has no weights; train it first with recipe 'chat', or set loss to 'simpo' or 'orpo'"
                )
            self.reference = {"name": str(source.name), "weights": digest_weights(source)}
        return load_chat_tokenizer(source, self.options)

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        made = encode_pairs(rows, self.processor, self.options, split)
        if not self._has_reference:
            return made
        model = self._load_reference()
        projection = find_projection(model)
        return add_reference(
            made,
            model,
            lambda module, batch: self._measure(module, batch, projection).log_probs,
            self.collate,
            self.spec,
        )

    @override
    def collate(self, rows: list[Row]) -> Batch:
        import torch

        batch = collate_pairs(rows, self.padding()["input_ids"])
        if "reference" in rows[0]:
            batch["reference"] = torch.tensor([row["reference"] for row in rows])
        return batch

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        model: torch.nn.Module = self._load(source)
        self._projection = find_projection(model)
        return model

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> PairOutputs:
        return self._measure(model, batch, self._projection)

    @override
    def predict(self, outputs: PairOutputs, batch: Batch) -> Predictions:
        found = {"log_probs": outputs.log_probs, "rewards": self._rewards(outputs, batch)}
        if self._has_reference:
            found["kl"] = self._ratios(outputs, batch)[:, 0] / outputs.tokens[:, 0]
        return found

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        chosen, rejected = (float(value) for value in prediction["rewards"])
        better = SIDES[0] if chosen > rejected else SIDES[1]
        return {"preferred": better, "margin": chosen - rejected, "chosen": chosen, "rejected": rejected}

    @property
    def _has_reference(self) -> bool:
        return self.options.loss in WITH_REFERENCE

    @override
    def pair_losses(self, outputs: PairOutputs, batch: Batch) -> torch.Tensor:
        options, means = self.options, outputs.log_probs / outputs.tokens
        if options.loss == "simpo":
            return simpo_loss(means, options.beta, options.gap, options.mislabeled)
        if options.loss == "orpo":
            return orpo_loss(means, options.beta)
        ratios = self._ratios(outputs, batch)
        if options.loss == "ipo":
            return ipo_loss(ratios / outputs.tokens, options.beta)
        return dpo_loss(options.beta * ratios, options.mislabeled)

    @override
    def score_pairs(self, predictions: Predictions) -> dict[str, np.ndarray]:
        found = super().score_pairs(predictions)
        return {**found, "kl": np.asarray(predictions["kl"], dtype=np.float64)} if self._has_reference else found

    def _measure(self, model: torch.nn.Module, batch: Batch, projection: Projection) -> PairOutputs:
        from torch.nn.functional import pad

        labels = pad(batch["labels"][..., 1:], (0, 1), value=IGNORED)
        flat = {"input_ids": batch["input_ids"].flatten(0, 1), "attention_mask": batch["attention_mask"].flatten(0, 1)}

        def compute(layer: Projection, hidden: torch.Tensor) -> PairOutputs:
            losses = compute_nll(layer, hidden, labels.flatten(0, 1)).sum(-1)
            return PairOutputs(-losses.view(labels.shape[:2]), (labels != IGNORED).sum(-1))

        outputs: PairOutputs = run_model(model, {**flat, "use_cache": False}, projection, compute)
        return outputs

    def _ratios(self, outputs: PairOutputs, batch: Batch) -> torch.Tensor:
        reference: torch.Tensor = batch["reference"].to(outputs.log_probs.dtype)
        return outputs.log_probs - reference

    def _rewards(self, outputs: PairOutputs, batch: Batch) -> torch.Tensor:
        """Return the reward of each answer: what the loss compares."""
        if self.options.loss == "dpo":
            return self.options.beta * self._ratios(outputs, batch)
        means = (self._ratios(outputs, batch) if self._has_reference else outputs.log_probs) / outputs.tokens
        return self.options.beta * means if self.options.loss == "simpo" else means

    def _load(self, source: ModelSource) -> Any:
        from transformers import AutoModelForCausalLM

        return source.model(AutoModelForCausalLM)

    def _load_reference(self) -> Any:
        """Load the model that training starts from; of a trained model, the one that it was trained from."""
        from taskrecipe import ModelSource

        given = ModelSource(self.reference["name"], config_values=dict(self.spec.model.config))
        source = self._source if self._source.name == self.reference["name"] and self._source.has_weights else given
        if digest_weights(source) != self.reference["weights"]:
            raise UsageError(
                f"the model was trained from {self.reference['name']!r}, whose weights have changed since: "
                "margins can't be computed"
            )
        return self._load(source)
