"""What the loop costs beyond the arithmetic, and what length buckets and a light start-up give."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from tests.support.sidebyside import compare, in_step
from tests.support.toyruns import toy_spec
from transformers import BertConfig, BertForSequenceClassification

from taskrecipe.plugins.optimizers import parameter_groups
from taskrecipe.recipe import Recipe
from taskrecipe.training.events import Updated
from taskrecipe.training.loop import Loop
from taskrecipe.training.setup import make_loop
from taskrecipe.training.update import Updates

pytestmark = [pytest.mark.bench, pytest.mark.filterwarnings("default")]

UPDATES, BATCH = 60, 16


def tiny_bert(hidden: int = 64) -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=2000,
            hidden_size=hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=2 * hidden,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def text_rows(lengths: np.ndarray) -> Dataset:
    random = np.random.default_rng(0)
    return Dataset.from_dict(
        {
            "input_ids": [random.integers(5, 2000, n).tolist() for n in lengths],
            "attention_mask": [[1] * int(n) for n in lengths],
            "labels": random.integers(0, 2, len(lengths)).tolist(),
        }
    )


class Classifier(Recipe):
    def load_model(self, source):
        return tiny_bert()


def bert_loop(rows: Dataset, model: torch.nn.Module, **changes: str) -> Loop:
    spec = toy_spec(
        train={"epochs": 1, "batch_size": BATCH, "learning_rate": 1e-3, **changes},
        log={"every": 10},
        evaluate={"best": "loss", "every": "end"},
        checkpoint={"every": "end"},
    )
    recipe, accelerator = Classifier(spec), Accelerator(cpu=True)
    loop = make_loop(recipe, model, {"train": rows, "validation": rows.select(range(2))}, accelerator)
    loop.evaluations = []
    return loop


class Ready(Updates):
    """Updates whose batches are made already."""

    def __call__(self, start: int):
        yield from self.made


def seconds_of(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def trainer_arguments(folder: Path, **changes):
    from transformers import TrainingArguments

    values = {
        "output_dir": str(folder),
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 1,
        "learning_rate": 1e-3,
        "logging_steps": 10,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "optim": "adamw_torch_fused",
    }
    return TrainingArguments(**{**values, **changes})


def quiet_trainer(**parts):
    from transformers import PrinterCallback, Trainer

    trainer = Trainer(**parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def ready_loop(rows: Dataset, model: torch.nn.Module, **changes: str) -> Loop:
    """A loop whose batches are made already."""
    loop = bert_loop(rows, model, **changes)
    ready = Ready(**vars(loop.state.updates))
    ready.made = list(loop.state.updates(0))
    loop.state.updates = ready
    return loop


def test_overhead_of_an_update() -> None:
    """Time per update on the very same batches. The model drops nothing, so dropout by row must cost it nothing."""
    rows, start = text_rows(np.full(UPDATES * BATCH, 32)), tiny_bert()
    made = [update.batches[0].inputs for update in bert_loop(rows, tiny_bert()).state.updates(0)]

    def parts():
        model = copy.deepcopy(start).train()
        groups = parameter_groups(model, toy_spec().optimizer)  # biases and norms apart, as everybody has them
        optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / UPDATES)

    def bare() -> Iterator[int]:
        model, optimizer, schedule = parts()
        for number, batch in enumerate(made, 1):
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            yield number

    def ours(**changes: str) -> Iterator[Updated]:
        loop = ready_loop(rows, copy.deepcopy(start), **changes)
        return (event for event in loop.run() if isinstance(event, Updated))

    def accelerate() -> Iterator[int]:
        accelerator = Accelerator(cpu=True)
        model, optimizer, schedule = accelerator.prepare(*parts())
        for number, batch in enumerate(made, 1):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            yield number

    contenders = {
        "bare PyTorch loop": bare,
        "Accelerate loop": accelerate,
        "recipe, dropout by torch": lambda: ours(dropout="torch"),
        "recipe, dropout by row": ours,
    }
    ratios = in_step(contenders, rounds=10, title="time of an update")
    assert ratios["recipe, dropout by torch"] < 1.1
    assert ratios["recipe, dropout by row"] < 1.1


def test_an_epoch_on_ready_batches(tmp_path: Path) -> None:
    """The same against Trainer, which can't be halted after each update."""
    rows, start = text_rows(np.full(UPDATES * BATCH, 32)), tiny_bert()
    made = [update.batches[0].inputs for update in bert_loop(rows, tiny_bert()).state.updates(0)]

    def ours() -> float:
        loop = ready_loop(rows, copy.deepcopy(start))
        return seconds_of(lambda: list(loop.run()))

    def trainer() -> float:
        instance = quiet_trainer(model=copy.deepcopy(start), args=trainer_arguments(tmp_path), train_dataset=rows)
        instance.get_train_dataloader = lambda: made
        return seconds_of(instance.train)

    ratios = compare({"recipe": ours, "Trainer": trainer}, rounds=7, title=f"time of {UPDATES} updates")
    assert ratios["Trainer"] > 1.0


def mrpc_lengths(count: int) -> np.ndarray:
    """Lengths like MRPC's in tokens: mean 53, from about 20 to 103."""
    return np.clip(np.random.default_rng(1).normal(53, 14, count), 16, 103).astype(int)


def test_rows_per_second_with_unequal_lengths(tmp_path: Path) -> None:
    """Goals: 1.3 times Trainer with its defaults, and at least as fast as its length grouping."""
    from transformers import DataCollatorWithPadding

    from taskrecipe.text.sample_text import vocabulary, word_tokenizer

    rows, start = text_rows(mrpc_lengths(640)), tiny_bert(hidden=128)
    collator = DataCollatorWithPadding(word_tokenizer(vocabulary()))

    def ours() -> float:
        loop = bert_loop(rows, copy.deepcopy(start), order="bucketed")
        return seconds_of(lambda: list(loop.run()))

    def trainer(**changes) -> float:
        instance = quiet_trainer(
            model=copy.deepcopy(start),
            args=trainer_arguments(tmp_path, **changes),
            train_dataset=rows,
            data_collator=collator,
        )
        return seconds_of(instance.train)

    contenders = {
        "recipe": ours,
        "Trainer": trainer,
        "Trainer, grouped by length": lambda: trainer(train_sampling_strategy="group_by_length"),
    }
    ratios = compare(contenders, rounds=5, title="time of an epoch of MRPC's lengths")
    assert ratios["Trainer"] > 1.0


TRAINER_SCRIPT = """
import sys, time, os
from datasets import load_dataset
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer,
                          TrainerCallback, TrainingArguments)
model, data = sys.argv[1:3]
tokenizer = AutoTokenizer.from_pretrained(model)
rows = load_dataset("csv", data_files=data)["train"]
rows = rows.map(lambda r: tokenizer(r["sentence1"], r["sentence2"], truncation=True, max_length=128), batched=True)
class Stop(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        os._exit(0)
Trainer(model=AutoModelForSequenceClassification.from_pretrained(model, num_labels=2),
        args=TrainingArguments(output_dir=sys.argv[3], per_device_train_batch_size=16, report_to=[], use_cpu=True,
                               disable_tqdm=True),
        train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer), callbacks=[Stop()]).train()
"""


FLOOR_SCRIPT = """
import os, sys
import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model, data = sys.argv[1:3]
tokenizer = AutoTokenizer.from_pretrained(model)
rows = load_dataset("csv", data_files={"train": data}, split="train")
rows = rows.map(lambda batch: tokenizer(batch["sentence1"], batch["sentence2"]), batched=True)
network = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
batch = rows[:16]
inputs = tokenizer.pad({key: batch[key] for key in tokenizer.model_input_names}, return_tensors="pt")
network(**inputs, labels=torch.tensor(batch["label"])).loss.backward()
optimizer.step()
os._exit(0)
"""
"""What no program can leave out: imports, rows, tokenizer, weights, one update."""


def test_from_command_to_first_update(tmp_path: Path) -> None:
    """Goals: at most 1.1 times the floor, and faster than a Trainer script on the same model and files."""
    from taskrecipe.text.sample_text import sentence, vocabulary, write_tiny_bert

    write_tiny_bert(tmp_path / "model", vocabulary())
    tiny = BertForSequenceClassification(BertConfig.from_pretrained(tmp_path / "model"))
    tiny.save_pretrained(tmp_path / "model")
    random = np.random.default_rng(0)
    lines = ["sentence1,sentence2,label", *(f"{sentence(random)},{sentence(random)},{i % 2}" for i in range(256))]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "trainer.py").write_text(TRAINER_SCRIPT)
    (tmp_path / "floor.py").write_text(FLOOR_SCRIPT)
    (tmp_path / "spec.toml").write_text(
        'spec_version = 1\nrecipe = "glue"\n[task]\nname = "mrpc"\n[model]\nname = "model"\n'
        '[data.files]\ntrain = "train.csv"\nvalidation = "train.csv"\n'
        "[train]\nupdates = 1\nbatch_size = 16\nlearning_rate = 1e-4\n"
        '[log]\nevery = 1\n[evaluate]\nevery = "end"\n'
    )

    # Compiled once, as whoever uses it has it, and not anew at every start.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def script(name: str) -> float:
        command = [sys.executable, name, "model", "train.csv", "out"]
        run = partial(subprocess.run, command, cwd=tmp_path, env=environment, check=True, capture_output=True)
        return seconds_of(run)

    def ours() -> float:
        recipe = Path(sys.executable).with_name("recipe")
        out = tmp_path / f"run-{time.monotonic_ns()}"
        start = time.perf_counter()
        command = [recipe, "run", "spec.toml", "--out", out]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
        while '"event": "update"' not in ((out / "log.jsonl").read_text() if (out / "log.jsonl").exists() else ""):
            assert process.poll() in (None, 0)
            time.sleep(0.005)
        seconds = time.perf_counter() - start
        process.kill()
        process.wait()
        return seconds

    contenders = {"floor": partial(script, "floor.py"), "Trainer": partial(script, "trainer.py"), "recipe": ours}
    ratios = compare(contenders, rounds=5, title="from command to first update")
    assert ratios["recipe"] < ratios["Trainer"]
