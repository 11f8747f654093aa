"""`recipe sweep` and `recipe repeat` as a user meets them: killed, interrupted, changed, failing."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support import sweeps
from tests.support.commands import Started, Zygote
from tests.support.runs import bits, resume, train

SETTINGS: dict[str, Any] = {"trials": 5, "sampler": "tpe", "pruner": "halving", "reduction": 2, "parallel": 2}


def run_sweep(zygote: Zygote, spec: Path, out: Path, *options: str) -> Started:
    return zygote.run("sweep", str(spec), "--out", str(out), *options, cwd=spec.parent, timeout=300)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweeps.write_sweep(tmp_path_factory.mktemp("sweep") / "task", **SETTINGS)


@pytest.fixture(scope="module")
def swept(zygote: Zygote, task: Path) -> Path:
    """A sweep that nothing has disturbed."""
    out = task.parent.parent / "calm"
    done = run_sweep(zygote, task, out)
    assert done.code == 0, done.stderr
    return out


def test_the_winner_of_halving_has_the_bits_of_a_run_that_never_paused(zygote: Zygote, swept: Path) -> None:
    found = sweeps.facts(swept)
    assert [len(rung["trials"]) for rung in found["rungs"]] == [5, 2, 1]
    winner = swept / found["best"]["runs"][0]["name"]
    (swept.parent / "again").mkdir()
    shutil.copy(swept / "best.toml", swept.parent / "again" / "best.toml")  # it extends ../task/spec.toml
    straight = train(zygote, swept.parent / "again" / "best.toml")
    assert [bits(zygote, winner, at) for at in ("last", "best")] == [
        bits(zygote, straight, at) for at in ("last", "best")
    ]


def test_a_trial_that_was_stopped_can_be_resumed_as_any_run(zygote: Zygote, swept: Path, tmp_path: Path) -> None:
    pruned = next(trial for trial in sweeps.facts(swept)["trials"] if trial["state"] == "pruned")
    copy = tmp_path / "trial"
    shutil.copytree(swept / pruned["runs"][0]["name"], copy)
    assert json.loads((copy / "results.json").read_text())["status"] == "stopped"
    assert resume(zygote, copy).code == 0
    assert json.loads((copy / "results.json").read_text())["updates"] == 18
    assert (copy / "report.html").exists()


def test_trials_are_listed_as_runs_with_their_values(zygote: Zygote, swept: Path) -> None:
    done = zygote.run("runs", str(swept), "--columns", "train.learning_rate,train.batch_size", "--json", cwd=swept)
    listed = {Path(run["folder"]).name: run for run in json.loads(done.stdout)}
    for trial in sweeps.facts(swept)["trials"]:
        run = listed[trial["runs"][0]["name"]]
        assert {key: run[key] for key in trial["values"]} == trial["values"]
    origins = (swept / "trial-000" / "spec.toml").read_text()
    assert re.search(r"learning_rate = \S+ # --set", origins)
    assert re.search(r'best = "f1" # .*spec.toml:\d+ \(extended\)', origins)


def test_optuna_s_own_tools_can_read_the_journal(swept: Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(swept / "journal.log")))
    study = optuna.load_study(study_name="sweep", storage=storage)
    found = sweeps.facts(swept)
    assert [trial.params for trial in study.trials] == [trial["values"] for trial in found["trials"]]
    assert study.best_value == found["best"]["value"]
    names = {"finished": "COMPLETE", "pruned": "PRUNED"}
    assert [trial.state.name for trial in study.trials] == [names[trial["state"]] for trial in found["trials"]]


def test_the_page_needs_nothing_else_and_leads_to_the_best_trials(swept: Path) -> None:
    page = (swept / "report.html").read_text()
    assert not re.search(r'(src|href)="(https?:)?//', page)
    assert "default-src 'none'" in page
    best = sweeps.facts(swept)["best"]["runs"][0]["name"]
    assert f'href="{best}/report.html"' in page
    for part in ("figure-parallel", "figure-history", "figure-slice-train.learning_rate", "table-trials"):
        assert f'id="{part}"' in page


def test_the_same_command_again_changes_nothing(zygote: Zygote, task: Path, swept: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in swept.glob("trial-*/*")}
    known = sweeps.describe(swept)
    done = run_sweep(zygote, task, swept, "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["best"] == sweeps.facts(swept)["best"]
    assert sweeps.describe(swept) == known
    assert {path: path.stat().st_mtime_ns for path in swept.glob("trial-*/*")} == before


def wait_for_updates(out: Path, started: Started) -> dict[str, int]:
    """Wait until the sweeper works and a trial trains; the processes that train then."""
    end = time.monotonic() + 120
    while time.monotonic() < end and started.poll() is None:
        running = sweeps.holders(out)
        if "running" in started.stderr and any((out / name / "log.jsonl").exists() for name in running):
            return running
        time.sleep(0.02)
    raise AssertionError(started.stderr)


def test_killed_and_interrupted_it_ends_with_the_same_trials(zygote: Zygote, task: Path, swept: Path) -> None:
    out = swept.parent / "stormy"
    arguments = "sweep", str(task), "--out", str(out)
    killed = zygote.start(*arguments, cwd=task.parent)
    wait_for_updates(out, killed)
    killed.send(signal.SIGKILL)
    assert killed.wait() == -9

    interrupted = zygote.start(*arguments, cwd=task.parent)
    running = wait_for_updates(out, interrupted)
    sweeps.kill(next(iter(running.values())))  # a trial, which is started again
    time.sleep(0.5)
    interrupted.send(signal.SIGINT)
    assert interrupted.wait() == 130, interrupted.stderr
    assert "Continue with: recipe sweep" in interrupted.stderr
    assert sweeps.holders(out) == {}  # all have saved and ended

    done = run_sweep(zygote, task, out)
    assert done.code == 0, done.stderr
    assert sweeps.describe(out) == sweeps.describe(swept)
    assert sweeps.fingerprints(zygote, out) == sweeps.fingerprints(zygote, swept)


def test_a_change_of_space_or_spec_is_refused_and_more_trials_are_not(
    zygote: Zygote, task: Path, swept: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "task", tmp_path / "out"
    shutil.copytree(task.parent, folder)
    shutil.copytree(swept, out)
    plan = out / ".state" / "plan.json"
    text = plan.read_text().replace(str(task.parent), str(folder))
    plan.write_text(text)
    changed = folder / "sweep.toml"
    changed.write_text(task.read_text().replace("2e-2", "3e-2") + "[train]\nclip_norm = 0.5\n")
    done = run_sweep(zygote, changed, out)
    assert done.code == 2
    assert "sweep.space.train.learning_rate" in done.stderr
    assert "train.clip_norm: 1.0 → 0.5 changes results; if you mean it: --allow train.clip_norm" in done.stderr
    assert plan.read_text() == text

    changed.write_text(task.read_text().replace('"trials": 5', "").replace("trials = 5", "trials = 6"))
    done = run_sweep(zygote, changed, out)
    assert done.code == 0, done.stderr
    assert "note: changed since the sweep began: sweep.trials: 5 → 6" in done.stderr
    trials = sweeps.facts(out)["trials"]
    assert [trial["values"] for trial in trials[:5]] == [trial["values"] for trial in sweeps.facts(swept)["trials"]]
    assert len(trials) == 6


def test_a_trial_that_fails_is_counted_and_too_many_end_the_sweep(zygote: Zygote, tmp_path: Path) -> None:
    space = '\n[sweep.space]\n"train.learning_rate" = [1e-3, 1e9, 1e-4]\n'
    settings = {"trials": 3, "sampler": "grid", "parallel": 2}
    spec = sweeps.write_sweep(tmp_path / "task", space=space, max_failures=0, **settings)
    done = run_sweep(zygote, spec, tmp_path / "out", "--set", "sweep.max_failures=1")
    assert done.code == 0, done.stderr
    assert "failed: 1" in done.stdout
    found = sweeps.facts(tmp_path / "out")
    assert [trial["state"] for trial in found["trials"]] == ["finished", "failed", "finished"]
    assert "update" in found["trials"][1]["error"]

    done = run_sweep(zygote, spec, tmp_path / "out")
    assert done.code == 4
    assert "1 of 3 trials have failed, too many to go on" in done.stderr


def test_repeat_trains_each_seed_and_describes_the_spread(zygote: Zygote, task: Path, tmp_path: Path) -> None:
    spec, out = task.parent / "spec.toml", tmp_path / "seeds"
    done = zygote.run("repeat", str(spec), "--seeds", "2", "--out", str(out), "--json", cwd=tmp_path, timeout=300)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    runs = found["trials"][0]["runs"]
    assert [run["name"] for run in runs] == ["seed-3", "seed-4"]
    for metric, spread in found["metrics"].items():
        values = [run["metrics"][metric] for run in runs]
        assert spread["mean"] == pytest.approx(sum(values) / 2)
        assert (spread["least"], spread["most"]) == (min(values), max(values))
        assert spread["low"] <= spread["mean"] <= spread["high"]
    straight = train(zygote, spec, str(tmp_path / "straight"))
    assert bits(zygote, out / "seed-3") == bits(zygote, straight)


def test_a_sweep_is_not_run_as_a_spec(zygote: Zygote, task: Path) -> None:
    done = zygote.run("run", str(task), cwd=task.parent)
    assert done.code == 2
    assert f"search with `recipe sweep {task}`" in done.stderr
    done = zygote.run("sweep", str(task.parent / "spec.toml"), cwd=task.parent)
    assert done.code == 2
    assert "has no table [sweep]" in done.stderr
