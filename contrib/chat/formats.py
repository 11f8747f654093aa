"""The ways in which data sets write conversations, and how each is read as a list of messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args

from taskrecipe import Column, DataError, Row

Message = dict[str, Any]
Format = Literal["messages", "prompt_completion", "alpaca", "sharegpt"]

FORMATS: dict[str, dict[str, Column]] = {
    "messages": {
        "messages": Column("the turns of a conversation, each with 'role' and 'content'"),
    },
    "prompt_completion": {
        "prompt": Column("what is asked: a text, or turns with 'role' and 'content'"),
        "completion": Column("the answer: a text, or turns with 'role' and 'content'", target=True),
    },
    "alpaca": {
        "instruction": Column("what is asked"),
        "input": Column("what the instruction is about", required=False),
        "output": Column("the answer", target=True),
    },
    "sharegpt": {
        "conversations": Column("the turns of a conversation, each with 'from' and 'value'"),
    },
}
FURTHER = {
    "system": Column("a system message before the conversation", required=False),
    "tools": Column("tools that the template shows to the model: JSON schemas, or a text of JSON", required=False),
}
ROLES = ("system", "developer", "user", "assistant", "tool")
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bing": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}


def find_format(names: Collection[str], given: str | None) -> str:
    """Return the format that the spec gives, or the one that the columns show."""
    if given is not None:
        return given
    found = [name for name in get_args(Format) if next(iter(FORMATS[name])) in names]
    if found:
        return str(found[0])
    expected = "; ".join(f"{name}: {', '.join(columns)}" for name, columns in FORMATS.items())
    raise DataError(
        f"no conversation is found in the columns {', '.join(map(repr, names))}. "
        f"Known formats and their columns are {expected}; "
        'if columns have other names, say so: [data.columns] messages = "…"'
    )


def read_messages(row: Row, kind: str) -> list[Message]:
    """Return the messages of a row. Raise `ValueError` that says what is wrong with it."""
    messages = READERS[kind](row)
    if row.get("system"):
        messages = [{"role": "system", "content": row["system"]}, *messages]
    if not messages:
        raise ValueError("there are no messages")
    for number, message in enumerate(messages):
        check_message(message, number)
    return messages


def read_tools(row: Row) -> list[Any] | None:
    """Return the tools of a row, if it has any."""
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise ValueError(f"'tools' is not JSON: {error}") from error
    if tools is not None and not isinstance(tools, list):
        raise ValueError("'tools' must be a list")
    return [drop_missing(tool) for tool in tools] if tools else None


def drop_missing(value: Any) -> Any:
    """Return a value without the keys that are None: tables give every struct the keys of all of them."""
    if isinstance(value, Mapping):
        return {key: drop_missing(item) for key, item in value.items() if item is not None}
    return [drop_missing(item) for item in value] if isinstance(value, list) else value


def read_turns(value: Any, role: str) -> list[Message]:
    """Return a text as one turn of `role`, and a list of turns as it is."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"turns must be a text or a list, not a {type(value).__name__}")
    return [drop_missing(message) for message in value]


def _read_prompt(row: Row) -> list[Message]:
    if row.get("prompt") is None:
        raise ValueError("there is no prompt")
    return [*read_turns(row["prompt"], "user"), *read_turns(row.get("completion"), "assistant")]


def _read_alpaca(row: Row) -> list[Message]:
    instruction, given = row.get("instruction"), row.get("input")
    if not isinstance(instruction, str):
        raise ValueError("there is no instruction")
    asked = f"{instruction}\n\n{given}" if given else instruction
    return [{"role": "user", "content": asked}, *read_turns(row.get("output"), "assistant")]


def _read_sharegpt(row: Row) -> list[Message]:
    made = []
    for number, turn in enumerate(read_turns(row.get("conversations"), "user")):
        if not isinstance(turn, Mapping):
            raise ValueError(f"message {number} is a {type(turn).__name__}, not a table with 'from' and 'value'")
        role = SHAREGPT_ROLES.get(str(turn.get("from")).lower())
        if role is None:
            raise ValueError(f"message {number} is from {turn.get('from')!r}; known are {', '.join(SHAREGPT_ROLES)}")
        made.append({"role": role, "content": turn.get("value")})
    return made


READERS: dict[str, Callable[[Row], list[Message]]] = {
    "messages": lambda row: read_turns(row.get("messages"), "user"),
    "prompt_completion": _read_prompt,
    "alpaca": _read_alpaca,
    "sharegpt": _read_sharegpt,
}


def check_message(message: Any, number: int) -> None:
    """Raise `ValueError` unless a message has a known role and a text."""
    if not isinstance(message, Mapping):
        raise ValueError(f"message {number} is a {type(message).__name__}, not a table with 'role' and 'content'")
    if message.get("role") not in ROLES:
        raise ValueError(f"message {number} has the role {message.get('role')!r}; known are {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, str) or (
        content is None and (message.get("tool_calls") or message.get("reasoning_content"))
    ):
        return
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return
    raise ValueError(f"message {number} ({message['role']}) has no text: its content is {content!r:.80}")
