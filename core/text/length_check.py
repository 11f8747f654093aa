"""Check that rows fit the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskrecipe.errors import UsageError

if TYPE_CHECKING:
    from taskrecipe.model import ModelSource


def require_length(source: ModelSource, tokenizer: Any, key: str, length: int) -> None:
    """Raise if rows may be longer than the model has positions. A model without numbered positions takes any length."""
    positions = getattr(source.config(), "max_position_embeddings", None)
    # Some models number positions from after the padding token: their tokenizer knows how many are left.
    if positions and length > (limit := min(positions, tokenizer.model_max_length)):
        raise UsageError(f"{key} is {length}; the model takes {limit} tokens at most")
