"""A disk without space for a checkpoint ends the run before its first update; one that fills later keeps them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.runs import bits, resume, steps, train, write_spec

RECIPE = Path(sys.executable).with_name("recipe")
MOUNTS = ["unshare", "-rm"]


@pytest.fixture(autouse=True)
def _may_mount() -> None:
    if subprocess.run([*MOUNTS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")


def on_small_disk(folder: Path, size: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a disk of that size at `small`, whose content is kept in `kept`."""
    (folder / "small").mkdir()
    (folder / "kept").mkdir()
    whole = f"mount -t tmpfs -o size={size} tmpfs small && {script}; code=$?; cp -a small/. kept; exit $code"
    return subprocess.run(
        [*MOUNTS, "bash", "-c", whole],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RECIPE": str(RECIPE)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_too_small_a_disk_is_foreseen(tmp_path: Path) -> None:
    write_spec(tmp_path)
    done = on_small_disk(tmp_path, "256k", "$RECIPE run spec.toml --out small/run")
    assert done.returncode == 4, done.stderr
    assert "no space for a checkpoint" in done.stderr
    assert "bytes" in done.stderr
    assert "update 1:" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_disk_that_fills_up_leaves_what_was_saved(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    whole = train(zygote, spec, "whole")
    fill = '(until grep -q \'"event": "save"\' small/run/log.jsonl 2>/dev/null; do sleep 0.01; done; '
    fill += "cat /dev/zero > small/filler 2>/dev/null) & $RECIPE run spec.toml --out small/run"
    done = on_small_disk(tmp_path, "24m", fill)
    if done.returncode == 0:
        pytest.skip("the run was over before the disk was full")
    assert done.returncode == 4, done.stderr
    assert "small/run" in done.stderr
    assert "Traceback" not in done.stderr
    saved = tmp_path / "kept" / "run"
    assert steps(saved)
    again = resume(zygote, saved)
    assert again.code == 0, again.stderr
    assert bits(zygote, saved) == bits(zygote, whole)
