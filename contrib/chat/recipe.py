"""Supervised fine-tuning of chat models: what the assistant says is learned, the rest is only read."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taskrecipe import (
    IGNORED,
    Batch,
    Column,
    DataError,
    Direction,
    Judgment,
    Predictions,
    Recipe,
    Row,
    Splits,
)
from taskrecipe.contrib.chat.formats import FORMATS, FURTHER, find_format, read_messages, read_tools
from taskrecipe.contrib.chat.options import ChatOptions
from taskrecipe.contrib.chat.preparation import (
    check_rows,
    find_end_of_turn,
    handle_overflow,
    list_numbers,
    load_chat_tokenizer,
    raise_problems,
)
from taskrecipe.contrib.chat.rendering import ChatTemplate
from taskrecipe.text import (
    LANGUAGE_METRICS,
    add_attention_mask,
    compute_losses,
    compute_mean_loss,
    compute_perplexity,
    find_projection,
    make_language_scorer,
    measure_rows,
    next_tokens,
    pack_rows,
    require_packs,
    run_model,
    score_rows,
    select_inputs,
    use_packs,
)

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from taskrecipe import DescribedText, ModelSource, Scorer
    from taskrecipe.text import Projection, TokenLosses


NOTHING = np.empty(0, dtype=np.int32)
"""The tokens of a row that is refused."""


MAX_NEW_TOKENS = 256
"""Tokens that an answer has at most, unless `[predict].max_new_tokens` says otherwise."""


class Chat(Recipe):
    """Supervised fine-tuning of a chat model (Llama, Qwen, SmolLM, Gemma and similar) on conversations.

    Rows hold messages, a prompt and its completion, alpaca's columns or ShareGPT's conversations. The model's own chat
    template renders them, or one given as a file. The assistant's turns are trained on, with the token that ends them;
    which tokens these are follows from rendering the conversation up to each turn. A conversation to predict that ends
    with another turn is answered. Template and generation settings are saved with the model. Add the technique `lora`
    to train an adapter. Methods that generate while they train (PPO, GRPO) are not here.
    """

    Options = ChatOptions
    options: ChatOptions
    smooths_labels = True
    length_options: ClassVar = {"max_length": "input_ids"}
    sample_settings: ClassVar = {
        "task.format": "messages",
        "task.max_length": 128,
        "task.template": None,
        "predict.max_new_tokens": 16,
        "train.epochs": 6,
        "train.batch_size": 16,
        "train.accumulate": 1,
        "train.learning_rate": 5e-3,
        "schedule.warmup": 0.1,
    }
    _needs_answers = False
    """Whether rows are to train on or to evaluate, not only to predict."""
    _projection: Projection
    """How the model makes logits."""

    @override
    def metrics(self) -> dict[str, Direction]:
        return dict(LANGUAGE_METRICS)

    @override
    def columns(self) -> dict[str, Column]:
        if self.options.format:
            return {**FORMATS[self.options.format], **FURTHER}
        known = {name: column for columns in FORMATS.values() for name, column in columns.items()}
        return {**{name: replace(column, required=False) for name, column in known.items()}, **FURTHER}

    @override
    def sample(self, folder: Path) -> Splits:
        """Make questions whose answers follow from them: opposites, and colors of things."""
        from datasets import Dataset

        from taskrecipe.contrib.chat.sample import make_conversation, write_tiny_llama

        write_tiny_llama(folder)
        sizes = {"train": 512, "validation": 64}
        splits = {}
        for number, (split, size) in enumerate(sizes.items()):
            random = np.random.default_rng([self.spec.seed, number])
            made = [make_conversation(random, int(random.integers(1, 4))) for _ in range(size)]
            splits[split] = Dataset.from_dict({"messages": made})
        return splits

    @override
    def learn(self, rows: Dataset) -> None:
        self._needs_answers = True
        if self.options.format is None:
            found = find_format(rows.column_names, None)
            warnings.warn(f"rows are read as [task].format = {found!r}, which their columns show", stacklevel=2)

    @override
    def check(self, rows: Dataset, split: str) -> None:
        kind = find_format(rows.column_names, self.options.format)
        wanted = self._needs_answers and self.options.untrained == "error"

        def read(row: Row) -> None:
            messages, _ = read_messages(row, kind), read_tools(row)
            if wanted and not any(message["role"] == "assistant" for message in messages):
                raise ValueError('the assistant says nothing, so nothing is trained on; [task].untrained = "skip"?')

        check_rows(rows, split, next(iter(FORMATS[kind])), read)

    @override
    def load_processor(self, source: ModelSource) -> Any:
        tokenizer = load_chat_tokenizer(source, self.options)
        if find_end_of_turn(tokenizer) is None and not source.exported:
            warnings.warn(
                "the chat template ends the assistant's turns without a special token: the model can't learn to stop",
                stacklevel=2,
            )
        return tokenizer

    @override
    def preprocess(self, rows: Dataset, split: str) -> Dataset:
        from taskrecipe.data import map_rows

        if not len(rows):  # a block of a stream
            return rows
        kind = find_format(rows.column_names, self.options.format)
        column = next(iter(FORMATS[kind]))
        made = map_rows(rows, lambda batch: self._encode_batch(batch, kind))
        raise_problems({number: text for number, text in enumerate(made["problem"]) if text}, split, column)
        lengths = np.asarray(self.lengths(made))
        kept = self._keep_rows(made, handle_overflow(lengths, self.options, split, column), split, column)
        return self._cut(made.select(np.flatnonzero(kept)) if not kept.all() else made)

    @override
    def collate(self, rows: list[Row]) -> Batch:
        tokens = [{name: row[name] for name in ("input_ids", "labels")} for row in rows]
        if self.options.packing:
            batch = pack_rows(tokens, self.options.max_length, self.padding()["input_ids"])
        else:
            batch = add_attention_mask(super().collate(tokens), tokens)
        return {**batch, **self._collate_prompts(rows)}

    @override
    def load_model(self, source: ModelSource) -> torch.nn.Module:
        from transformers import AutoModelForCausalLM

        model = source.model(AutoModelForCausalLM)
        if self.options.packing:
            require_packs(model, "[task].packing = true", self.options.max_length)
        self._set_generation(model)  # also of a trained model: an adapter comes without these settings
        self._projection = find_projection(model)
        made: torch.nn.Module = model
        return made

    @override
    def forward(self, model: torch.nn.Module, batch: Batch) -> TokenLosses:
        labels, smoothing = next_tokens(batch), self.spec.train.label_smoothing

        def compute(projection: Projection, hidden: torch.Tensor) -> TokenLosses:
            return compute_losses(projection, hidden, labels, smoothing, correct=not model.training)

        with use_packs(batch):
            losses: TokenLosses = run_model(model, select_inputs(batch), self._projection, compute)
        return losses

    @override
    def loss_counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": float((batch["labels"][:, 1:] != IGNORED).sum())}

    @override
    def loss(self, outputs: TokenLosses, batch: Batch, training: bool) -> dict[str, torch.Tensor]:
        return {"loss": compute_mean_loss(outputs, next_tokens(batch), training)}

    @override
    def predict(self, outputs: TokenLosses, batch: Batch) -> Predictions:
        # What the assistant says is part of the input, so rows to predict have it too.
        return dict(measure_rows(outputs, next_tokens(batch), batch))

    @override
    def infer(self, model: torch.nn.Module, batch: Batch) -> Predictions:
        """Measure what the assistant says, and answer conversations that end without an answer."""
        measured = super().infer(model, batch)
        if "prompt_ids" not in batch:
            return measured
        texts = self.processor.batch_decode(self._generate(model, batch), skip_special_tokens=True)
        asked = batch["prompt_mask"].any(-1).tolist()
        return {**measured, "text": [text if is_asked else "" for text, is_asked in zip(texts, asked, strict=True)]}

    @override
    def score(self, predictions: Predictions, rows: Dataset) -> dict[str, float]:
        return score_rows(predictions)

    @override
    def scorer(self, predictions: Predictions, rows: Dataset) -> Scorer:
        return make_language_scorer(predictions)

    @override
    def judge(self, prediction: Row, row: Row) -> Judgment:
        tokens = int(prediction["tokens"])
        return Judgment(loss=float(prediction["nll"]) / tokens if tokens else None)

    @override
    def answer(self, prediction: Row, row: Row) -> Any:
        tokens = int(prediction["tokens"])
        is_answered = "text" in prediction and len(row["prompt_ids"])  # an evaluation only measures
        said: dict[str, Any] = {"answer": prediction["text"]} if is_answered else {}
        if tokens:
            loss = float(prediction["nll"]) / tokens
            said |= {"loss": loss, "perplexity": compute_perplexity(loss), "tokens": tokens}
        return said

    @override
    def describe(self, example: Row) -> DescribedText:
        """Show the rendered conversation. What is trained on is marked, the tokens that end turns too."""
        from taskrecipe import DescribedText
        from taskrecipe.text import describe_tokens

        pieces = describe_tokens(example["input_ids"], self.processor)
        labels = example["labels"]
        # Nothing is before the first token to predict it from.
        line = [
            replace(piece, role="trained") if place and label != IGNORED else piece
            for place, (piece, label) in enumerate(zip(pieces, labels, strict=True))
        ]
        trained = sum(piece.role == "trained" for piece in line)
        return DescribedText([line], {"trained": f"{trained} of {len(line)} tokens"})

    # Rows -------------------------------------------------------------------------------------------

    def _encode_batch(self, batch: dict[str, list[Any]], kind: str) -> dict[str, list[Any]]:
        template = ChatTemplate(self.processor)
        names = list(batch)
        made: dict[str, list[Any]] = {"input_ids": [], "labels": [], "prompt_ids": [], "problem": []}
        for values in zip(*batch.values(), strict=True):
            try:
                encoded, problem = self._encode_row(dict(zip(names, values, strict=True)), kind, template), ""
            except ValueError as error:
                encoded, problem = (NOTHING,) * 3, str(error)
            for name, value in zip(made, (*encoded, problem), strict=True):
                made[name].append(value)
        return made

    def _encode_row(self, row: Row, kind: str, template: ChatTemplate) -> tuple[Any, Any, Any]:
        """Return the tokens of a conversation, its labels, and the tokens to answer if it ends without an answer."""
        messages, tools = read_messages(row, kind), read_tools(row)
        encoded = template.encode(*template.find_turns(messages, tools, last=self.options.turns == "last"))
        ids = np.asarray(encoded.ids, dtype=np.int32)
        labels = np.where(encoded.trained, ids, IGNORED).astype(np.int32)
        is_open = messages[-1]["role"] != "assistant"
        prompt = template.encode_prompt(messages, tools) if is_open else []
        return ids, labels, np.asarray(prompt, dtype=np.int32)

    def _keep_rows(self, made: Dataset, kept: NDArray[np.bool_], split: str, column: str) -> NDArray[np.bool_]:
        """Return which rows stay, without those in which nothing is trained on; rows to answer all stay."""
        length = self.options.max_length
        idle = np.array(
            [not any(label != IGNORED for label in labels[1:length]) for labels in made["labels"]], dtype=bool
        )
        if not self._needs_answers:
            open_rows = np.array([bool(len(prompt)) for prompt in made["prompt_ids"]], dtype=bool)
            idle, kept = idle & ~open_rows, kept | open_rows
        numbers = np.flatnonzero(idle & kept)
        if len(numbers) and self.options.untrained == "error":
            message = f"nothing is trained on within the first {length} tokens"
            raise_problems(dict.fromkeys(numbers.tolist(), message), split, column)
        if len(numbers):
            shown = f"{len(numbers)} of {len(idle)} rows (rows {list_numbers(numbers.tolist())})"
            warnings.warn(f"{split}: nothing is trained on in {shown}, which are skipped", stacklevel=2)
        if not (kept & ~idle).any() and not self.spec.data.streaming:
            raise DataError("no row is left in which something is trained on", split=split, column=column)
        return np.asarray(kept & ~idle)

    def _cut(self, rows: Dataset) -> Dataset:
        from taskrecipe.data import map_rows

        length, names = self.options.max_length, ("input_ids", "labels")
        if max(self.lengths(rows) or [0], default=0) <= length:
            return rows.remove_columns("problem")
        return map_rows(
            rows, lambda batch: {name: [one[:length] for one in batch[name]] for name in names}, keep=["prompt_ids"]
        )

    def _collate_prompts(self, rows: list[Row]) -> Batch:
        """Return the prompts of conversations to answer, padded on the left: answers begin where prompts end."""
        import torch

        prompts = [row.get("prompt_ids", ()) for row in rows]
        width = max(map(len, prompts))
        if not width:
            return {}
        ids = np.full((len(rows), width), self.padding()["input_ids"], dtype=np.int64)
        mask = np.zeros_like(ids)
        for number, prompt in enumerate(prompts):
            if len(prompt):
                ids[number, -len(prompt) :], mask[number, -len(prompt) :] = prompt, 1
        return {"prompt_ids": torch.from_numpy(ids), "prompt_mask": torch.from_numpy(mask)}

    # Answers ----------------------------------------------------------------------------------------

    def _set_generation(self, model: Any) -> None:
        """Let the model stop where its turns end. These settings are exported with it."""
        settings, end = model.generation_config, find_end_of_turn(self.processor)
        known = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
        ends = {token for token in [*known, end, self.processor.eos_token_id] if token is not None}
        settings.eos_token_id = sorted(ends) or None
        if settings.pad_token_id is None:
            settings.pad_token_id = self.processor.pad_token_id if self.processor.pad_token_id is not None else end
        settings.max_new_tokens = self._max_new_tokens
        settings._from_model_config = False  # or transformers makes it again from the model's configuration

    def _generate(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        from taskrecipe.text import Generation, generate_tokens

        prompts, mask = batch["prompt_ids"], batch["prompt_mask"].clone()
        mask[:, -1] = 1  # a row without a prompt gets one token to read, and what is made of it is left out
        settings, length = self.spec.predict, self._max_new_tokens
        # Where to stop is among the model's own settings.
        how = Generation(settings, length, settings.beams or 1, self.spec.seed, self.padding()["input_ids"])
        return generate_tokens(model, prompts, mask, how)[:, prompts.shape[1] :]

    @property
    def _max_new_tokens(self) -> int:
        return self.spec.predict.max_new_tokens or MAX_NEW_TOKENS
