"""Write what TRL makes of our templates, pairs and models into `tests/contrib/trl_oracle.json`.

TRL is no dependency. To record its numbers again, install it next to this project and run, from the project's folder:

    python -m venv .build/trl --system-site-packages
    .build/trl/bin/python -m pip install --constraint constraints.txt --editable . trl
    .build/trl/bin/python -m tests.support.trl_oracle
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from taskrecipe.contrib.chat.sample import make_pairs, sample_tokenizer, write_tiny_llama, write_weights
from tests.support.templates import CONVERSATIONS, TEMPLATES, make_tokenizer

TARGET = Path(__file__).parent.parent / "contrib" / "trl_oracle.json"
BETA = 0.2
PAIRS = 6


def make_pair_rows() -> Dataset:
    """Return the pairs that losses are recorded for."""
    return make_pairs(0, PAIRS, 1)["train"]


def load_tiny_model(auto_class: Any, seed: int, **options: Any) -> Any:
    """Return a tiny model in double precision, the same for the same seed."""
    with tempfile.TemporaryDirectory() as name:
        write_tiny_llama(Path(name))
        write_weights(Path(name), seed)
        torch.manual_seed(seed)
        model = auto_class.from_pretrained(name, **options)
    if hasattr(model, "score"):
        torch.nn.init.normal_(model.score.weight, generator=torch.Generator().manual_seed(seed))
    return model.float()


def record_masks() -> dict[str, Any]:
    """Return for each template and conversation the tokens, and which of them TRL trains on."""
    from trl import SFTConfig, SFTTrainer

    found = {}
    for name, template in TEMPLATES.items():
        tokenizer = copy.deepcopy(make_tokenizer())
        tokenizer.chat_template = template
        marked = "marked" in name
        rows = [
            {"messages": messages} if marked else {"prompt": messages[:-1], "completion": messages[-1:]}
            for messages in CONVERSATIONS
        ]
        with tempfile.TemporaryDirectory() as folder:
            trainer = SFTTrainer(
                model=load_tiny_model(AutoModelForCausalLM, 0),
                args=SFTConfig(output_dir=folder, assistant_only_loss=marked, report_to=[], use_cpu=True),
                train_dataset=Dataset.from_list(rows),
                processing_class=tokenizer,
            )
            made = trainer.train_dataset
            found[name] = [
                {"input_ids": list(row["input_ids"]), "trained": [int(label != -100) for label in row["labels"]]}
                for row in made
            ]
    return found


def record_preferences() -> dict[str, float]:
    """Return TRL's mean loss of the pairs for DPO and IPO."""
    from trl import DPOConfig, DPOTrainer

    found = {}
    for name, kind in (("dpo", "sigmoid"), ("ipo", "ipo")):
        with tempfile.TemporaryDirectory() as folder:
            trainer = DPOTrainer(
                model=load_tiny_model(AutoModelForCausalLM, 1),
                ref_model=load_tiny_model(AutoModelForCausalLM, 0),
                args=DPOConfig(output_dir=folder, loss_type=[kind], beta=BETA, report_to=[], use_cpu=True, bf16=False),
                train_dataset=_as_conversations(),
                processing_class=sample_tokenizer(),
            )
            found[name] = _compute_loss(trainer)
    return found


def record_rewards() -> dict[str, float]:
    """Return TRL's mean loss of the pairs for a reward model, without and with centering."""
    from trl import RewardConfig, RewardTrainer

    found = {}
    for centering in (0.0, 0.1):
        model = load_tiny_model(AutoModelForSequenceClassification, 1, num_labels=1)
        with tempfile.TemporaryDirectory() as folder:
            trainer = RewardTrainer(
                model=model,
                args=RewardConfig(
                    output_dir=folder,
                    center_rewards_coefficient=centering or None,
                    report_to=[],
                    use_cpu=True,
                    bf16=False,
                ),
                train_dataset=_as_conversations(),
                processing_class=sample_tokenizer(),
            )
            found[str(centering)] = _compute_loss(trainer)
    return found


def _as_conversations() -> Dataset:
    def convert(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            **{side: [{"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")},
        }

    return Dataset.from_list([convert(row) for row in make_pair_rows()])


def _compute_loss(trainer: Any) -> float:
    batch = trainer.data_collator(list(trainer.train_dataset))
    trainer.model.eval()
    with torch.no_grad():
        return float(trainer.compute_loss(trainer.model, batch))


if __name__ == "__main__":
    import trl

    recorded = {
        "trl": trl.__version__,
        "masks": record_masks(),
        "preferences": record_preferences(),
        "rewards": record_rewards(),
    }
    TARGET.write_text(json.dumps(recorded) + "\n")
