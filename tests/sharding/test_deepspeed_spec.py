"""A DeepSpeed configuration is read by value: each key is known, agrees with the spec, or is refused at its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.runs import GLUE

from taskrecipe import SpecError, validate
from taskrecipe.spec.resolve import resolve

LAUNCH = '[launch]\nprocesses = 2\nshard = "full"\nengine = "deepspeed"\n'
AGREES = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 1,
    "gradient_clipping": "auto",
    "fp16": {"enabled": False, "loss_scale": 0, "hysteresis": 2},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "overlap_comm": True},
    "steps_per_print": 1e5,
}


def write(folder: Path, launch: str, config: dict[str, Any] | str | None = None, spec: str = GLUE) -> Path:
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config, indent=2)
        (folder / "ds.json").write_text(text)
        launch += 'deepspeed = "ds.json"\n'
    path = folder / "spec.toml"
    path.write_text(spec + launch)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        validate(path)
    return str(caught.value)


def test_a_file_becomes_part_of_the_spec(tmp_path: Path) -> None:
    path = write(tmp_path, LAUNCH, AGREES)
    validate(path)
    resolved = resolve(path)
    given = resolved.spec.launch.deepspeed
    assert given is not None
    assert resolved.spec.launch.zero_settings == {"reduce_bucket_size": 500_000_000, "overlap_comm": True}
    written = resolved.to_toml()
    assert "reduce_bucket_size = 500000000 # ds.json:13" in written
    (tmp_path / "ds.json").unlink()
    (tmp_path / "again.toml").write_text(written)
    assert resolve(tmp_path / "again.toml").spec.launch == resolved.spec.launch


@pytest.mark.parametrize(
    ("key", "value", "line", "wanted"),
    [
        ("train_batch_size", 16, 2, "[train].batch_size makes it 8"),
        ("train_micro_batch_size_per_gpu", 2, 2, "makes it 4"),
        ("gradient_accumulation_steps", 4, 2, "[train].accumulate makes it 1"),
        ("gradient_clipping", 3.5, 2, "[train].clip_norm makes it"),
        ("bf16", {"enabled": True}, 3, "[train].precision makes it false"),
        ("zero_optimization", {"stage": 2}, 3, "[launch].shard makes it 3"),
        ("zero_optimization", {"offload_optimizer": {"device": "cpu"}}, 4, "offloading does not work"),
        ("optimizer", {"type": "AdamW"}, 2, "[optimizer] of the spec says it"),
        ("scheduler", {"type": "WarmupLR"}, 2, "[schedule] of the spec says it"),
        ("zero_optimisation", {"stage": 3}, 2, "zero_optimization"),
        ("zero_optimization", {"zero_quantized_weights": True}, 3, "is not a key of"),
        ("zero_optimization", {"reduce_bucket_size": "many"}, 3, "reduce_bucket_size"),
    ],
)
def test_a_contradiction_is_refused_at_its_line(key: str, value: Any, line: int, wanted: str, tmp_path: Path) -> None:
    known = {"wall_clock_breakdown": False}
    found = refusal(write(tmp_path, LAUNCH, {key: value, **known}))
    assert f"ds.json:{line}:" in found
    assert wanted in found


def test_a_table_in_the_spec_is_checked_alike(tmp_path: Path) -> None:
    found = refusal(write(tmp_path, LAUNCH + "[launch.deepspeed.zero_optimization]\nstage = 1\n"))
    assert "spec.toml" in found
    assert "[launch].shard makes it 3" in found


@pytest.mark.parametrize("content", ["{", "[1]", '{"password": "hunter2"}', "[" * 100 + "]" * 100, '{"bf16": NaN}'])
def test_another_file_is_refused_without_a_word_of_it(content: str, tmp_path: Path) -> None:
    found = refusal(write(tmp_path, LAUNCH, content))
    assert "spec.toml" in found
    assert "hunter2" not in found


def test_only_json_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "secrets.txt").write_text(json.dumps(AGREES))
    found = refusal(write(tmp_path, LAUNCH + 'deepspeed = "secrets.txt"\n'))
    assert "must end in .json" in found
    assert "no such file" in refusal(write(tmp_path, LAUNCH + 'deepspeed = "missing.json"\n'))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('shard = "full"', "", "DeepSpeed divides what [launch].shard says"),
        ('engine = "deepspeed"', "offload = true\nengine = 'deepspeed'", "offload does not work"),
        ('engine = "deepspeed"', "unused_weights = true\nengine = 'deepspeed'", "unused_weights does not work"),
        ('shard = "full"\nengine = "deepspeed"', 'shard = "optimizer"', "needs engine 'deepspeed'"),
        ('engine = "deepspeed"', "[launch.deepspeed]\n", "has no effect without engine"),
    ],
)
def test_what_does_not_go_together_is_refused(old: str, new: str, reason: str, tmp_path: Path) -> None:
    assert reason in refusal(write(tmp_path, LAUNCH.replace(old, new)))


def test_micro_batches_must_be_given(tmp_path: Path) -> None:
    spec = GLUE.replace("batch_size = 8", 'batch_size = 8\naccumulate = "auto"')
    assert "give the number of micro-batches" in refusal(write(tmp_path, LAUNCH, spec=spec))


@pytest.mark.parametrize("name", ["adagrad", "schedule_free", "adafactor"])
def test_an_optimizer_that_needs_shapes_is_refused(name: str, tmp_path: Path) -> None:
    spec = GLUE.replace("[evaluate]", f'[schedule]\nname = "constant"\n[optimizer]\nname = "{name}"\n[evaluate]')
    assert f"optimizer '{name}'" in refusal(write(tmp_path, LAUNCH, spec=spec))


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from taskrecipe import UsageError
    from taskrecipe.system import optional_packages
    from taskrecipe.training.setup import make_accelerator

    monkeypatch.setattr(optional_packages, "find_spec", lambda package: None)
    spec = resolve(write(tmp_path, LAUNCH)).spec
    with pytest.raises(UsageError, match=r"pip install 'taskrecipe\[deepspeed\]'"):
        make_accelerator(spec)
