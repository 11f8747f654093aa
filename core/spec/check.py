"""From the layers of a spec to a `Spec`, or to every problem they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from taskrecipe.core.errors import PluginError, RecipeError, SpecError
from taskrecipe.core.registry import Registry, installed
from taskrecipe.core.spec.diagnostics import MOST_PROBLEMS
from taskrecipe.core.spec.findings import Finding
from taskrecipe.core.spec.layers import Layers, load
from taskrecipe.core.spec.migrate import require_version
from taskrecipe.core.spec.rules import broken_rules, odd_values
from taskrecipe.core.spec.spec import Spec

if TYPE_CHECKING:
    from taskrecipe.core.recipe import Recipe


def validate(path: Path, registry: Registry | None = None) -> Spec:
    """Check the spec at `path` as it stands; `SpecError` with every problem it has."""
    return checked(load(path), registry or installed())


def checked(layers: Layers, registry: Registry) -> Spec:
    """The spec that the layers make; `SpecError` with every problem if they make none."""
    require_version(layers.sources)
    findings: list[Finding] = []
    try:
        spec = Spec.model_validate(layers.values, context={"registry": registry})
    except ValidationError as error:
        from taskrecipe.core.spec.explanation import explained  # only problems need it, and most specs have none
        from taskrecipe.core.spec.tables import salvaged

        findings = explained(error, layers.values, registry)
        spec = salvaged(layers.values, _broken(findings), registry)
    known = {(finding.path, finding.code) for finding in findings}
    findings += (finding for finding in odd_values(layers.values) if (finding.path, finding.code) not in known)
    try:
        findings.extend(broken_rules(spec, partial(_recipe, registry), _broken(findings)))
    except PluginError:
        if not findings:  # else a recipe may well fail on what is left of a broken spec
            raise
    if findings:
        raise _refused(layers, findings)
    return spec


def _broken(findings: Sequence[Finding]) -> list[tuple[str | int, ...]]:
    return [path for finding in findings for path in finding.broken]


def _recipe(registry: Registry, spec: Spec) -> Recipe:
    plugin = registry.find("recipes", spec.recipe)
    try:
        recipe: Recipe = plugin.load()(spec)
    except RecipeError:
        raise
    except Exception as cause:
        raise PluginError(f"{plugin.describe()} failed on this spec: {type(cause).__name__}: {cause}") from cause
    return recipe


def _refused(layers: Layers, findings: Sequence[Finding]) -> RecipeError:
    problems = []
    for finding in findings[:MOST_PROBLEMS]:
        source, span = layers.place(finding.path, at_key=finding.at_key)
        if source.kind == "sample":
            return PluginError(f"sample_settings of recipe {layers.values['recipe']!r} are wrong: {finding.message}")
        problems.append(source.problem(span, finding.code, finding.message, finding.suggestion))
    secret = {(problem.file, problem.line) for problem in problems if problem.code == "secret"}
    problems = [replace(p, source="") if (p.file, p.line) in secret else p for p in problems]
    newest_first = {source.name: index for index, source in enumerate(reversed(layers.sources))}
    return SpecError(sorted(dict.fromkeys(problems), key=lambda p: (newest_first[p.file], p.line, p.column)))
