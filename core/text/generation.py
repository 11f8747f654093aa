"""Generating text with a trained model. The same prompt gives the same text, whichever other prompts share its batch.

When tokens are drawn, each row has random numbers of its own: a function of the seed, of its prompt and of how many
tokens it has so far. The token with the largest sum of log-probability and Gumbel noise is then a draw from the
distribution, so that the search itself stays greedy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from taskrecipe.training.sharding import gather_root, is_divided, unwrap_model

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Predict


@dataclass(frozen=True)
class Generation:
    """How text is generated, and which tokens pad and end it."""

    settings: Predict
    max_new_tokens: int
    beams: int
    seed: int
    pad_token_id: int | None = None
    eos_token_id: int | None = None


def generate_tokens(
    model: torch.nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor, how: Generation
) -> torch.Tensor:
    """Return what the model generates for each prompt, padded, as `generate` of transformers does."""
    settings = how.settings
    draws = [RowNoise(how, input_ids, attention_mask)] if settings.temperature else []
    given = {"pad_token_id": how.pad_token_id, "eos_token_id": how.eos_token_id}
    # With several processes or devices the model is wrapped, and the wrapper can't generate.
    module: Any = unwrap_model(model)
    with gather_root(module):
        generated: torch.Tensor = module.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            max_new_tokens=how.max_new_tokens,
            num_beams=1 if draws else how.beams,
            repetition_penalty=settings.repetition_penalty,
            do_sample=False,
            logits_processor=draws,
            synced_gpus=is_divided(
                module
            ),  # where processes gather weights for each token, all go on to the longest text
            **{name: value for name, value in given.items() if value is not None},
        )
    return generated


class RowNoise:
    """Makes scores of the next token so that the highest one is a draw. transformers calls it for every token."""

    def __init__(self, how: Generation, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None:
        self.settings, self.width = how.settings, input_ids.shape[1]
        self.keys = [
            _digest(how.seed, ids[mask.bool()].tolist()) for ids, mask in zip(input_ids, attention_mask, strict=True)
        ]
        self.step = 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.Tensor:
        """Return the scores with noise, and without the tokens that `top_k` and `top_p` leave out."""
        kept = _leave_out(scores.float() / self.settings.temperature, self.settings.top_k, self.settings.top_p)
        noise = np.stack([_draw_gumbel(key, self.step, scores.shape[-1]) for key in self.keys])
        self.step += 1
        return kept + torch.from_numpy(noise).to(kept.device, kept.dtype)


def _leave_out(scores: torch.Tensor, top_k: int | None, top_p: float) -> torch.Tensor:
    ranked, order = scores.sort(descending=True, dim=-1, stable=True)
    before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)
    drop = before >= top_p if top_p < 1.0 else torch.zeros_like(before, dtype=torch.bool)
    if top_k is not None:
        drop[:, top_k:] = True
    drop[:, 0] = False
    return scores.masked_fill(drop.scatter(1, order, drop), -torch.inf)


def _draw_gumbel(key: int, step: int, size: int) -> np.ndarray[Any, Any]:
    random = np.random.Generator(np.random.Philox(key=np.array([key, step], dtype=np.uint64)))
    return random.gumbel(size=size)


def _digest(seed: int, prompt: list[int]) -> int:
    content = np.array([seed, *prompt], dtype=np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
