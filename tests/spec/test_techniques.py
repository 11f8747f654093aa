"""`[[techniques]]`: checked by the technique they name, which may object to the spec."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.specplugins import plugin, registry

from taskrecipe.errors import PluginError
from taskrecipe.spec.resolve import resolve

NOISE = '\n[[techniques]]\nname = "noise"\n'
FREEZE = '\n[[techniques]]\nname = "freeze"\nlayers = 2\n'


def test_several_techniques_are_kept_in_order(spec_text: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(spec_text + FREEZE + NOISE + "amount = 0.25\n")
    resolved = resolve(path, registry=registry())
    assert [technique.name for technique in resolved.spec.techniques] == ["freeze", "noise"]
    assert resolved.spec.techniques[1].amount == 0.25  # type: ignore[attr-defined]
    again = tmp_path / "again.toml"
    again.write_text(resolved.to_toml())
    assert resolve(again, registry=registry()).spec == resolved.spec


@pytest.mark.parametrize(
    ("tables", "code", "at", "suggestion"),
    [
        (NOISE.replace("noise", "nois"), "unknown-technique", '"nois"', "noise"),
        (NOISE + "amuont = 0.1\n", "unknown-key", "amuont", "amount"),
        (NOISE + "amount = 3.0\n", "out-of-range", "3.0", None),
        ('\n[[techniques]]\nname = "freeze"\n', "missing-key", "[[techniques]]", None),
        ("\n[[techniques]]\namount = 0.1\n", "missing-key", "[[techniques]]", None),
        (NOISE + "amount = 1.0\n", "conflict", "1.0", None),
        (NOISE * 17, "out-of-range", "[[techniques]]", None),
        ('\n[techniques]\nname = "noise"\n', "wrong-type", "[techniques]", None),
    ],
)
def test_a_wrong_technique_is_refused_at_its_place(problems, spec_text, tables, code, at, suggestion) -> None:
    [found] = problems(spec_text + tables)
    assert (found.code, found.suggestion) == (code, suggestion)
    assert found.source[found.column - 1 : found.column - 1 + found.width] == at


def test_a_technique_objects_to_the_rest_of_the_spec(problems, spec_text) -> None:
    [found] = problems(spec_text + "compile = true\n" + NOISE)
    assert (found.code, found.source, found.message) == ("conflict", "compile = true", "noise can't be compiled")


def test_a_technique_that_fails_is_named(problems, spec_text) -> None:
    [found] = problems(spec_text + NOISE + "amount = 0.75\n")
    assert (found.code, found.message) == (
        "plugin-failed",
        "technique 'noise' failed on this spec: RuntimeError: not today",
    )


@pytest.mark.parametrize(
    ("task", "technique", "fits"), [("", NOISE, False), ("", FREEZE, True), ("whole = false", NOISE, True)]
)
def test_the_loss_of_whole_updates_can_t_be_changed(problems, spec_text, task, technique, fits) -> None:
    text = spec_text.replace('"sorting"', '"pairing"').replace('name = "red"', task)
    found = problems(text + technique)
    assert [problem.code for problem in found] == ([] if fits else ["conflict"])
    if not fits:
        assert found[0].source == 'name = "noise"'
        assert "'pairing' computes whole updates" in found[0].message


def test_a_name_that_two_distributions_have_is_ambiguous(tmp_path, spec_text) -> None:
    from taskrecipe.cli.validate import problems_of

    path = tmp_path / "spec.toml"
    path.write_text(spec_text + NOISE)
    [found] = problems_of(path, registry(plugin("techniques", "noise", "Noise", "others")))
    assert found.code == "ambiguous-technique"


def test_the_sample_changes_a_technique_s_own_keys(spec_text: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(spec_text + FREEZE + NOISE + 'source = "a/b"\n')
    resolved = resolve(path, sample=True, registry=registry())
    freeze, noise = resolved.spec.techniques
    assert (freeze.layers, noise.amount, noise.source) == (2, 0.01, "a/b")  # type: ignore[attr-defined]
    origins = [
        str(resolved.origins.of(("techniques", *place))) for place in ((0, "layers"), (1, "amount"), (1, "source"))
    ]
    assert origins == [f"{path}:{_line(path, 'layers')}", "sample", f"{path}:{_line(path, 'source')}"]


def test_a_mistake_in_a_technique_is_the_file_s_with_the_sample_too(spec_text: str, tmp_path: Path) -> None:
    from taskrecipe.errors import SpecError

    path = tmp_path / "spec.toml"
    path.write_text(spec_text + NOISE + "amuont = 0.3\n")
    with pytest.raises(SpecError) as raised:
        resolve(path, sample=True, registry=registry())
    assert [(problem.file, problem.code) for problem in raised.value.problems] == [(str(path), "unknown-key")]


def test_wrong_sample_settings_are_the_technique_s_fault(
    spec_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support import specplugins

    monkeypatch.setattr(specplugins.Noise, "sample_settings", {"amount": 7.0})
    path = tmp_path / "spec.toml"
    path.write_text(spec_text + NOISE)
    with pytest.raises(PluginError, match="sample_settings of technique 'noise' are wrong"):
        resolve(path, sample=True, registry=registry())


def _line(path: Path, key: str) -> int:
    return next(number for number, line in enumerate(path.read_text().split("\n"), 1) if line.startswith(f"{key} ="))


@pytest.mark.parametrize(("task", "fits"), [("", False), ("whole = false", True)])
def test_whole_updates_are_cut_as_the_spec_says(problems, spec_text, task, fits) -> None:
    text = spec_text.replace('"sorting"', '"pairing"').replace('name = "red"', task)
    found = problems(text + 'accumulate = "auto"\n')
    assert [problem.code for problem in found] == ([] if fits else ["conflict"])
    if not fits:
        assert found[0].source == 'accumulate = "auto"'
