"""Suggest a command for a word that is none: a misspelling, or the name that other tools have for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup
from typing_extensions import override

from taskrecipe.errors import UsageError
from taskrecipe.spec.diagnostics import show_value
from taskrecipe.system.suggestions import closest

OTHER_NAMES = {
    "train": ("run",),
    "fit": ("run",),
    "start": ("run",),
    "launch": ("run",),
    "finetune": ("run",),
    "eval": ("evaluate", "run"),
    "evaluate": ("run",),
    "test": ("evaluate", "run"),
    "score": ("evaluate", "run"),
    "infer": ("predict",),
    "inference": ("predict",),
    "generate": ("predict",),
    "continue": ("resume",),
    "download": ("fetch",),
    "pull": ("fetch",),
    "check": ("validate",),
    "lint": ("validate",),
    "init": ("new",),
    "create": ("new",),
    "ls": ("list",),
    "history": ("runs",),
    "status": ("runs",),
    "recipes": ("list",),
    "inspect": ("preview",),
    "look": ("preview",),
    "peek": ("preview",),
    "visualize": ("preview",),
    "describe": ("show",),
    "info": ("show",),
    "tune": ("sweep",),
    "search": ("sweep",),
    "hpo": ("sweep",),
    "optimize": ("sweep",),
    "seeds": ("repeat",),
    "reproduce": ("replay",),
    "rerun": ("replay",),
    "docs": ("guide",),
    "help": ("guide",),
    "convert": ("export",),
    "push": ("export",),
    "upload": ("export",),
    "publish": ("export",),
}
"""The commands that other names lead to, the best first. Of these, the first one that exists is suggested."""


class Commands(TyperGroup):
    """The commands. An unknown one is answered with the one that was probably meant."""

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UsageError(f"there is no command {show_value(args[0])}{_hint(args, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def _hint(args: Sequence[str], commands: Sequence[str]) -> str:
    word = args[0]
    if word.endswith(".toml"):
        return f"; did you mean `recipe run {show_value(word)[1:-1]}`?"
    leads = [name for name in OTHER_NAMES.get(word.lower(), ()) if name in commands]
    if leads:
        why = " (it evaluates as it trains)" if leads[0] == "run" and word.lower() in _EVALUATION else ""
        return f"; did you mean `recipe {leads[0]}`{why}?"
    if close := closest(word, commands):
        return f"; did you mean `recipe {close}`?"
    return "; `recipe --help` lists the commands"


_EVALUATION = ("eval", "evaluate", "test", "score")
