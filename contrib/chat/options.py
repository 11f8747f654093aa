"""Options that recipes on conversations share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from taskrecipe import Count, LocalPath, TaskOptions
from taskrecipe.contrib.chat.formats import Format


class ConversationOptions(TaskOptions):
    """Options of all recipes on conversations."""

    max_length: Count = Field(default=2048, ge=8, le=1_000_000, description="Tokens that a row has at most.")
    template: LocalPath | None = Field(
        default=None,
        description="A file with a chat template (jinja) instead of the model's own. It is saved with the model.",
    )
    overflow: Literal["error", "drop", "cut"] = Field(
        default="error",
        description="Rows of more than max_length tokens: refuse them with their numbers; leave them out; or cut their "
        "end off. What is left out or cut is counted.",
    )


class ChatOptions(ConversationOptions):
    """Options of `chat`."""

    format: Format | None = Field(
        default=None,
        description="How rows hold a conversation: messages (role, content), prompt_completion, alpaca (instruction, "
        "input, output) or sharegpt (conversations of from, value); by default the columns show it.",
    )
    turns: Literal["all", "last"] = Field(
        default="all", description="Which of the assistant's turns are trained on: all of them, or only the last."
    )
    untrained: Literal["error", "skip"] = Field(
        default="error",
        description="Rows in which nothing would be trained on: refuse them with their numbers, or skip and "
        "count them.",
    )
    packing: bool = Field(
        default=False,
        description="Put several rows of a micro-batch into one line of up to max_length tokens instead of padding "
        "each. It saves time and doesn't change results.",
    )
