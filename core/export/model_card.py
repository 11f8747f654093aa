"""The README.md that goes with an exported model: what it was trained on, how, how well, and how to use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from taskrecipe.export.card_metadata import front_matter
from taskrecipe.export.tasks import Task
from taskrecipe.system.secrets import redact
from taskrecipe.system.terminal import printable

TALK = """

messages = [{"role": "user", "content": "…"}]
print(predict(messages)[0]["generated_text"][-1]["content"])"""
"""How to talk to a chat model: the pipeline uses the template that is saved with it."""


@dataclass(frozen=True)
class Card:
    """What a model card says."""

    name: str
    spec: Mapping[str, Any]
    """The values of the portable spec."""
    spec_text: str
    results: Mapping[str, Any]
    commits: Mapping[str, str | None] = field(default_factory=dict)
    """The hub's commits of `data` and `model`."""
    task: Task | None = None
    license: Mapping[str, str] = field(default_factory=dict)
    """What the base model's card says about its license."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The 95 % interval of each metric that has one."""
    place: str | None = None
    """The hub id that the model is loaded by; by default a folder."""
    is_chat: bool = False
    """Whether its tokenizer has a chat template."""

    @property
    def is_sample(self) -> bool:
        """Whether the model was trained on sample data."""
        return bool(self.results["data"] == "sample")

    @property
    def base_model(self) -> str | None:
        """The hub id of the model that training started from; None for a folder or a bare configuration."""
        return None if self.is_sample or not self.commits.get("model") else self.spec["model"].get("name")

    @property
    def datasets(self) -> list[str]:
        """The hub ids of the data, also of each part of a recipe that has parts; none for files."""
        return [] if self.is_sample else sorted(set(_find_datasets(self.spec)))

    @property
    def dataset(self) -> str | None:
        """The hub id of the data; None for files, or if each part of the recipe has its own."""
        return None if self.is_sample else self.spec["data"].get("path")

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """All metrics of the exported weights: those of the best evaluation, which may not be the last one."""
        best = self.results["best"]
        metrics: Mapping[str, float | None] = best["metrics"] if best else self.results["final"]
        return metrics


def write_card(card: Card, use: str | None = None) -> str:
    """Return a model card in the hub's format. `use` replaces its text on how to use the model."""
    blocks = [
        front_matter(card),
        f"# {printable(card.name)}",
        _describe_training(card),
        _describe_sources(card),
        "\n".join(_metric_table(card)),
        "## Use\n\n" + (use or _describe_use(card)),
        f"## Spec\n\nPaths are relative to the spec's file.\n\n```toml\n{card.spec_text.rstrip()}\n```",
    ]
    return redact("\n\n".join(blocks) + "\n")


def _find_datasets(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the `path` of each table called `data`, at any depth."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            if key == "data" and isinstance(value.get("path"), str):
                yield value["path"]
            yield from _find_datasets(value)


def _describe_training(card: Card) -> str:
    best, updates = card.results["best"], card.results["updates"]
    made = f"Trained with taskrecipe {version('taskrecipe')}, recipe `{card.spec['recipe']}`, {updates} updates."
    return made + (f" The weights are those after update {best['step']}, the best by {best['metric']}." if best else "")


def _describe_sources(card: Card) -> str:
    if card.is_sample:
        return (
            "**Trained on sample data, with a tiny model made on the spot. It shows that the recipe runs; "
            "its numbers say nothing about the task.**"
        )
    data, model = card.spec["data"], card.spec["model"]
    config = f", configuration {data['name']}" if card.dataset and data.get("name") else ""
    rows = ", ".join(f"{count} rows of {split}" for split, count in card.results["rows"].items())
    text = f"Data: {', '.join(card.datasets) or 'local files'}{config}{_at(card.commits.get('data'))}"
    text += f" ({rows})." if rows else "."
    if model.get("name"):
        text += f" Base model: {model['name']}{_at(card.commits.get('model'))}"
        text += f", under the license {card.license['license']}." if "license" in card.license else "."
    return text


def _at(commit: str | None) -> str:
    return f" at commit {commit}" if commit else ""


def _metric_table(card: Card) -> Iterator[str]:
    """Yield the lines of a table of metrics, with intervals where there are some."""
    best = card.results["best"]
    step = best["step"] if best else card.results["updates"]
    wide = bool(card.intervals.keys() & card.metrics.keys())
    yield f"| metric | after update {step} |" + (" 95 % interval |" if wide else "")
    yield "|---|---|" + ("---|" if wide else "")
    for name, value in card.metrics.items():
        number = "not a number" if value is None else f"{value:.4f}"
        yield f"| {printable(name)} | {number} |" + (f" {_format_interval(card.intervals.get(name))} |" if wide else "")


def _format_interval(interval: tuple[float, float] | None) -> str:
    return f"{interval[0]:.4f} to {interval[1]:.4f}" if interval else ""


def _describe_use(card: Card) -> str:
    if card.task and card.task.has_pipeline:
        where = "" if card.place else "Here `model` is the folder that holds this file:\n\n"
        code = f'predict = pipeline("{card.task.tag}", model="{card.place or "model"}")'
        if card.is_chat and card.task.tag == "text-generation":
            code += TALK
        return f"{where}```python\nfrom transformers import pipeline\n\n{code}\n```"
    run = printable(str(card.results["name"]))
    return (
        "transformers has no pipeline for this model. With the folder of the run that made it, on the command line "
        f"or in Python:\n\n```\nrecipe predict {run} INPUT\n```\n\n"
        f'```python\nfrom taskrecipe import Run\n\nrun = Run("{run}")\nmodel = run.model()\n```'
    )
