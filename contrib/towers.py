"""Two encoders, or one for both sides, that turn texts into vectors of length 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch  # noqa: TID253 - imported only where a model is made

SIDES = ("text1", "text2")


class Towers(torch.nn.Module):
    """The encoders of both sides. Each text becomes one vector."""

    def __init__(self, encoders: list[Any], pooling: str) -> None:
        super().__init__()
        self.encoders = torch.nn.ModuleList(encoders)
        self.pooling = pooling

    def forward(self, text1: dict[str, torch.Tensor], text2: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the vectors of both sides: pairs x 2 x width."""
        return torch.stack([self._embed(self.encoders[0], text1), self._embed(self.encoders[-1], text2)], dim=1)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Enable gradient checkpointing in all encoders."""
        for encoder in self.encoders:
            encoder.gradient_checkpointing_enable(**options)  # type: ignore[operator]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a shared encoder into `folder` itself, two into folders named after their sides."""
        if len(self.encoders) == 1:
            self.encoders[0].save_pretrained(folder)  # type: ignore[operator]
            return
        for side, encoder in zip(SIDES, self.encoders, strict=True):
            encoder.save_pretrained(Path(folder) / side)  # type: ignore[operator]

    def _embed(self, encoder: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        states = encoder(**inputs).last_hidden_state
        if self.pooling == "cls":
            pooled = states[:, 0]
        else:
            mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
            pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.nn.functional.normalize(pooled, dim=-1)


def contrastive_loss(vectors: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the mean cross entropy of finding each text's partner among all texts of the other side, both ways."""
    first, second = vectors.unbind(1)
    logits = first @ second.T / temperature
    partners = torch.arange(len(vectors), device=vectors.device)
    entropy = torch.nn.functional.cross_entropy
    return (entropy(logits, partners) + entropy(logits.T, partners)) / 2


class RandomState:
    """The state of torch's random number generators on the CPU and on the device, to be restored later."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state()
        self.own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)

    def restore(self) -> None:
        """Set the generators back to this state."""
        torch.set_rng_state(self.cpu)
        if self.own is not None:
            torch.get_device_module(self.device).set_rng_state(self.own, self.device)


def gather_vectors(own: torch.Tensor, accelerator: Any) -> torch.Tensor:
    """Return the vectors of all processes in order. Only `own` has gradients; numbers of vectors may differ."""
    if accelerator.num_processes == 1:
        return own
    counts = accelerator.gather(torch.tensor([len(own)], device=own.device)).tolist()
    padded = own.new_zeros(max(counts), *own.shape[1:])
    padded[: len(own)] = own.detach()
    gathered = accelerator.gather(padded).split(max(counts))
    parts = [part[:count] for part, count in zip(gathered, counts, strict=True)]
    parts[accelerator.process_index] = own
    return torch.cat(parts)
