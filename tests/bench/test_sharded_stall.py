"""How long training waits for a sharded checkpoint, against `async_save` of torch for the same state."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from tests.support.processruns import run_module

ROUNDS = 12

pytestmark = pytest.mark.bench


def test_training_waits_no_longer_than_for_async_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes. Both copy the state, and write it in the background; ours with checksums, and as one commit."""
    seconds: dict[str, list[float]] = run_module("tests.support.stall_process", str(tmp_path), str(ROUNDS))
    ratios = [ours / theirs for ours, theirs in zip(seconds["ours"], seconds["torch"], strict=True)]
    with capsys.disabled():
        print(f"\nstall per sharded checkpoint of 192 MiB, two processes, {ROUNDS} rounds")
        for name, label in (("torch", "dcp.async_save"), ("ours", "the loop's commit")):
            low, middle, high = statistics.quantiles(seconds[name], n=4)
            print(f"  {label:20} median {middle:.3f} s (quartiles {low:.3f} to {high:.3f})")
        print(f"  ratio of a round: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")
    assert statistics.median(ratios) <= 1.0
