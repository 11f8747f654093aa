"""The README.md that goes with an exported model: what it was trained on, how, and how well."""

from __future__ import annotations

from typing import Any

from taskrecipe.core.spec.resolve import Resolved


def model_card(resolved: Resolved, results: dict[str, Any]) -> str:
    """A model card in the hub's format, with the spec that made the model."""
    spec, best = resolved.spec, results["best"]
    base = spec.model.name if results["data"] != "sample" else None
    header = ["---", "library_name: transformers", *([f"base_model: {base}"] if base else []), "tags:", "- taskrecipe"]
    lines = [
        *header,
        f"- {spec.recipe}",
        "---",
        "",
        f"# {results['name']}",
        "",
        f"Trained by `recipe run` with the recipe `{spec.recipe}`, {results['updates']} updates.",
        "",
    ]
    if results["data"] == "sample":
        lines += [
            "**Trained on sample data, with a tiny model made on the spot. It shows that the recipe runs; "
            "its numbers say nothing about the task.**",
            "",
        ]
    else:
        rows = ", ".join(f"{count} rows of {split}" for split, count in results["rows"].items())
        lines += [f"Data: {spec.data.path or 'local files'} ({rows}).", ""]
    if best:
        lines += [f"The weights are those after update {best['step']}, best by {best['metric']}.", ""]
    lines += ["| metric | after the last update |", "|---|---|"]
    lines += [f"| {name} | {value:.4f} |" for name, value in results["final"].items()]
    lines += ["", "## Spec", "", "```toml", resolved.to_toml().rstrip(), "```", ""]
    return "\n".join(lines)
