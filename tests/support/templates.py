"""Chat templates in the style of well-known families, a tokenizer for all of them, and conversations to render."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from taskrecipe.text import train_tokenizer

_TURNS = "{% for message in messages %}"
_END = "{% endfor %}"
_PROMPT = "{% if add_generation_prompt %}"


def _roles(user: str, assistant: str, system: str, prompt: str, before: str = "") -> str:
    """Return a template that writes turns one after the other, each role in its own way."""
    return (
        f"{before}{_TURNS}{{% if message['role'] == 'user' %}}{user}"
        f"{{% elif message['role'] == 'assistant' %}}{assistant}{{% else %}}{system}{{% endif %}}{_END}"
        f"{_PROMPT}{prompt}{{% endif %}}"
    )


def _marked(text: str) -> str:
    return f"{{% generation %}}{text}{{% endgeneration %}}"


SAID = "{{ message['content'] }}"
TRIMMED = "{{ message['content'] | trim }}"
CHATML = f"<|im_start|>user\n{SAID}<|im_end|>\n"
CHATML_SYSTEM = f"<|im_start|>system\n{SAID}<|im_end|>\n"
LLAMA3 = "<|start_header_id|>{}<|end_header_id|>\n\n"

TEMPLATES: dict[str, str] = {
    "chatml": _roles(CHATML, f"<|im_start|>assistant\n{SAID}<|im_end|>\n", CHATML_SYSTEM, "<|im_start|>assistant\n"),
    "chatml, marked": _roles(
        CHATML,
        "<|im_start|>assistant\n" + _marked(f"{SAID}<|im_end|>") + "\n",
        CHATML_SYSTEM,
        "<|im_start|>assistant\n",
    ),
    "chatml with a default system message": _roles(
        CHATML,
        f"<|im_start|>assistant\n{SAID}<|im_end|>\n",
        CHATML_SYSTEM,
        "<|im_start|>assistant\n",
        before="{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}",
    ),
    "llama 3": _roles(
        LLAMA3.format("user") + TRIMMED + "<|eot_id|>",
        LLAMA3.format("assistant") + TRIMMED + "<|eot_id|>",
        LLAMA3.format("system") + TRIMMED + "<|eot_id|>",
        LLAMA3.format("assistant"),
        before="<|begin_of_text|>",
    ),
    "llama 3, marked": _roles(
        LLAMA3.format("user") + TRIMMED + "<|eot_id|>",
        LLAMA3.format("assistant") + _marked(TRIMMED + "<|eot_id|>"),
        LLAMA3.format("system") + TRIMMED + "<|eot_id|>",
        LLAMA3.format("assistant"),
        before="<|begin_of_text|>",
    ),
    "llama 2": _roles(f"<s>[INST] {SAID} [/INST]", f" {SAID} </s>", f"<<SYS>>{SAID}<</SYS>>", ""),
    "mistral": _roles(f"[INST]{SAID}[/INST]", f"{SAID}</s>", f"[SYSTEM]{SAID}[/SYSTEM]", "", before="<s>"),
    "mistral, marked": _roles(
        f"[INST]{SAID}[/INST]", _marked(f"{SAID}</s>"), f"[SYSTEM]{SAID}[/SYSTEM]", "", before="<s>"
    ),
    "gemma": _roles(
        f"<start_of_turn>user\n{TRIMMED}<end_of_turn>\n",
        f"<start_of_turn>model\n{TRIMMED}<end_of_turn>\n",
        f"<start_of_turn>user\n{TRIMMED}<end_of_turn>\n",
        "<start_of_turn>model\n",
        before="<bos>",
    ),
    "gemma, marked": _roles(
        f"<start_of_turn>user\n{TRIMMED}<end_of_turn>\n",
        "<start_of_turn>model\n" + _marked(f"{TRIMMED}<end_of_turn>") + "\n",
        f"<start_of_turn>user\n{TRIMMED}<end_of_turn>\n",
        "<start_of_turn>model\n",
        before="<bos>",
    ),
    "phi 3": _roles(
        f"<|user|>\n{SAID}<|end|>\n",
        f"<|assistant|>\n{SAID}<|end|>\n",
        f"<|system|>\n{SAID}<|end|>\n",
        "<|assistant|>\n",
    ),
    "phi 4": _roles(
        f"<|im_start|>user<|im_sep|>{SAID}<|im_end|>",
        f"<|im_start|>assistant<|im_sep|>{SAID}<|im_end|>",
        f"<|im_start|>system<|im_sep|>{SAID}<|im_end|>",
        "<|im_start|>assistant<|im_sep|>",
    ),
    "zephyr": _roles(
        f"<|user|>\n{SAID}</s>\n", f"<|assistant|>\n{SAID}</s>\n", f"<|system|>\n{SAID}</s>\n", "<|assistant|>\n"
    ),
    "deepseek": _roles(
        f"<|User|>{SAID}", f"<|Assistant|>{SAID}<|end_of_sentence|>", f"{SAID}", "<|Assistant|>", before="<|begin|>"
    ),
    "command": _roles(
        f"<|START_OF_TURN|><|USER|>{SAID}<|END_OF_TURN|>",
        f"<|START_OF_TURN|><|CHATBOT|>{SAID}<|END_OF_TURN|>",
        f"<|START_OF_TURN|><|SYSTEM|>{SAID}<|END_OF_TURN|>",
        "<|START_OF_TURN|><|CHATBOT|>",
        before="<BOS>",
    ),
    "granite": _roles(
        f"<|start_of_role|>user<|end_of_role|>{SAID}<|end_of_text|>\n",
        f"<|start_of_role|>assistant<|end_of_role|>{SAID}<|end_of_text|>\n",
        f"<|start_of_role|>system<|end_of_role|>{SAID}<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
    "granite, marked": _roles(
        f"<|start_of_role|>user<|end_of_role|>{SAID}<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|>" + _marked(f"{SAID}<|end_of_text|>") + "\n",
        f"<|start_of_role|>system<|end_of_role|>{SAID}<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
    "vicuna": _roles(f"USER: {SAID} ", f"ASSISTANT: {SAID}</s>", f"{SAID}\n\n", "ASSISTANT:"),
    "tulu": _roles(f"<|user|>\n{SAID}\n", f"<|assistant|>\n{SAID}</s>\n", f"<|system|>\n{SAID}\n", "<|assistant|>\n"),
    "openchat": _roles(
        f"GPT4 Correct User: {SAID}<|end_of_turn|>",
        f"GPT4 Correct Assistant: {SAID}<|end_of_turn|>",
        f"{SAID}<|end_of_turn|>",
        "GPT4 Correct Assistant:",
        before="<s>",
    ),
}
"""In the style of 20 templates; six of them say what is generated."""

THINKING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and loop.last and message.get('reasoning_content') %}"
    "<think>{{ message['reasoning_content'] }}</think>{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Reasoning is written in the last turn only, so earlier turns are written in another way once more follow."""

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Which sea is that?"}, {"role": "assistant", "content": "The North Sea."}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "two and two"},
        {"role": "assistant", "content": "Four, as always."},
        {"role": "user", "content": "Ünïcödé 🦞 and a\nnew line"},
        {"role": "assistant", "content": "  spaces around, and <tags>  "},
    ],
    [
        {"role": "user", "content": "repeat: assistant"},
        {"role": "assistant", "content": "assistant assistant user"},
        {"role": "user", "content": "repeat: assistant"},
        {"role": "assistant", "content": "repeat: assistant"},
    ],
]

TOKENS = re.compile(r"<\|?[A-Za-z_ /0-9]+\|?>|\[/?[A-Z]+\]|<</?SYS>>")


@cache
def make_tokenizer() -> Any:
    """Return a byte-level tokenizer with the special tokens of all templates."""
    special = sorted({token for template in TEMPLATES.values() for token in TOKENS.findall(template)})
    texts = [message["content"] for messages in CONVERSATIONS for message in messages] * 3
    texts += ["user assistant system model GPT4 Correct User: Assistant: USER: ASSISTANT: "] * 3
    tokenizer = train_tokenizer([texts], 400, {"eos_token": "</s>", "pad_token": "<|pad|>"})
    tokenizer.add_special_tokens({"additional_special_tokens": [t for t in special if t != "</s>"]})
    return tokenizer
