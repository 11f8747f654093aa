"""Nothing that is not finite reaches the weights, and the message says where it came from."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import Zygote
from tests.support.runs import log, results, write_regression


def test_a_row_whose_loss_overflows_is_named(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_regression(tmp_path, "1e30")  # a finite label, whose squared error is not, in float32
    folder = tmp_path / "run"
    done = zygote.run("run", str(spec), "--out", str(folder), "--set", "train.order='sequential'", cwd=tmp_path)
    assert done.code == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert "update 1:" in done.stderr
    assert "learning rate" in done.stderr
    assert "0, 1, 2, 3, 4, 5, 6, 7" in done.stderr
    assert results(folder)["status"] == "failed"
    assert results(folder)["updates"] == 0
    assert log(folder, "end")[-1]["status"] == "failed"


def test_a_learning_rate_that_blows_up_ends_with_the_last_good_checkpoint(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_regression(tmp_path, "1.5")
    folder = tmp_path / "run"
    options = ("--set", "train.learning_rate=1e9", "--set", "train.clip_norm=0", "--set", "optimizer.name='sgd'")
    done = zygote.run("run", str(spec), "--out", str(folder), *options, cwd=tmp_path)
    assert done.code == 4, done.stderr
    assert "1e+09" in done.stderr
    step = results(folder)["updates"]
    assert (folder / "checkpoints" / f"step-{step}").is_dir()


def test_a_metric_that_is_not_a_number_is_never_the_best(zygote: Zygote, tmp_path: Path) -> None:
    """Predictions that are all alike have no correlation; the best stays none."""
    spec = write_regression(tmp_path, "1.5")
    rows = (tmp_path / "validation.csv").read_text().splitlines()
    (tmp_path / "validation.csv").write_text("\n".join([rows[0], *[rows[1]] * 8]) + "\n")
    folder = tmp_path / "run"
    done = zygote.run("run", str(spec), "--out", str(folder), cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert results(folder)["best"] is None
    assert results(folder)["final"]["pearson"] is None
    assert (folder / "model" / "model.safetensors").exists()
