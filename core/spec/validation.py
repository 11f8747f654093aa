"""Validate the layers of a spec: the result is a `Spec`, or all problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from taskrecipe.errors import PluginError, RecipeError, SpecError
from taskrecipe.plugins.registry import Registry, installed
from taskrecipe.spec.data_rules import find_bad_urls, find_local_paths, find_special_files
from taskrecipe.spec.diagnostics import MOST_PROBLEMS
from taskrecipe.spec.findings import Finding
from taskrecipe.spec.key_path import KeyPath, has_value, value_at
from taskrecipe.spec.layers import Layers, load_layers
from taskrecipe.spec.migrate import require_version
from taskrecipe.spec.rules import find_broken_rules, find_odd_values
from taskrecipe.spec.spec import Spec


def validate(path: Path, registry: Registry | None = None) -> Spec:
    """Validate the spec at `path`. Raises `SpecError` with all its problems."""
    return validate_layers(load_layers(path), registry or installed())


def validate_part(path: Path, registry: Registry | None = None) -> None:
    """Validate a file that other specs extend. Raises `SpecError` with all its problems.

    It need not be complete, and rules about several keys are left to the specs that extend it.
    """
    layers = load_layers(path)
    require_version(layers.sources)
    _, findings = _validate_values(layers, registry or installed())
    wrong = [finding for finding in findings if _is_certain(finding, layers.values)]
    if wrong:
        raise _refuse(layers, wrong)


def _is_certain(finding: Finding, values: dict[str, Any]) -> bool:
    """Whether a finding in a part stays one whatever its child adds: a key, or the name of a plugin."""
    table = finding.path[:1]
    is_unnamed = table in _CHOICES and len(finding.path) > 1 and not has_value(values, (*table, "name"))
    return finding.code != "missing-key" and not is_unnamed


_CHOICES: tuple[KeyPath, ...] = (("optimizer",), ("schedule",), ("track",))
"""Tables whose keys depend on the name in them."""


def validate_layers(layers: Layers, registry: Registry) -> Spec:
    """Validate the merged values of all layers. Raises `SpecError` with all problems."""
    require_version(layers.sources)
    spec, findings = _validate_values(layers, registry)
    try:
        findings.extend(find_broken_rules(spec, registry, _broken_paths(findings)))
    except PluginError:
        if not findings:  # else the recipe may fail because the spec is broken
            raise
    if not findings and spec.sweep is not None:
        from taskrecipe.sweeps.space_check import find_sweep_problems  # few specs have one

        findings = find_sweep_problems(layers, spec, partial(_find_problems, registry=registry))
    if findings:
        raise _refuse(layers, findings)
    return spec


def _find_problems(layers: Layers, registry: Registry) -> list[Finding]:
    """Return everything that is wrong with layers, apart from their sweep."""
    spec, findings = _validate_values(layers, registry)
    return [*findings, *find_broken_rules(spec, registry, _broken_paths(findings))]


def _validate_values(layers: Layers, registry: Registry) -> tuple[Spec, list[Finding]]:
    """Return the spec, and what is wrong with single values. Wrong values are left out of the spec."""
    findings: list[Finding] = []
    try:
        spec = Spec.model_validate(layers.values, context={"registry": registry})
    except ValidationError as error:
        from taskrecipe.spec.explanations import explain_errors  # slow to import, and a valid spec needs none
        from taskrecipe.spec.tables import salvage_spec

        findings = explain_errors(error, layers, registry)
        spec = salvage_spec(layers.values, _broken_paths(findings), registry)
    known = {(finding.path, finding.code) for finding in findings}
    odd = [*find_odd_values(layers.values), *find_local_paths(layers)]
    odd += [*find_special_files(layers), *find_bad_urls(layers)]
    findings += (finding for finding in odd if (finding.path, finding.code) not in known)
    return spec, findings


def _broken_paths(findings: Sequence[Finding]) -> list[tuple[str | int, ...]]:
    return [path for finding in findings for path in finding.broken]


def _refuse(layers: Layers, findings: Sequence[Finding]) -> RecipeError:
    problems = []
    for finding in findings[:MOST_PROBLEMS]:
        source, span = layers.place(finding.path, at_key=finding.at_key)
        if source.kind == "sample":
            return PluginError(f"sample_settings of {_sampled_plugin(layers, finding)} are wrong: {finding.message}")
        problems.append(source.problem(span, finding.code, finding.message, finding.suggestion))
    secret = {(problem.file, problem.line) for problem in problems if problem.code == "secret"}
    problems = [replace(p, source="") if (p.file, p.line) in secret else p for p in problems]
    newest_first = {source.name: index for index, source in enumerate(reversed(layers.sources))}
    return SpecError(sorted(dict.fromkeys(problems), key=lambda p: (newest_first[p.file], p.line, p.column)))


def _sampled_plugin(layers: Layers, finding: Finding) -> str:
    """Name the plugin whose sample settings gave the value at a finding's path."""
    if finding.path[0] == "techniques":
        return f"technique {value_at(layers.values, (*finding.path[:2], 'name'))!r}"
    return f"recipe {layers.values['recipe']!r}"
