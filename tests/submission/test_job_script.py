"""The batch script of a run: it asks for what the spec says, and no value of a spec can break out of its place."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.runs import GLUE

from taskrecipe import SpecError, UsageError, submit, validate
from taskrecipe.spec.submission import Submit
from taskrecipe.submission.job_script import write_script

CLUSTER = """
[submit]
nodes = 2
gpus = 4
cpus = 8
memory = "64G"
time = "1-12:00:00"
partition = "gpu"
account = "lab"
save_before = 300
options = ["--exclusive", "--comment=a b"]
setup = ["module load cuda"]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(GLUE.replace('name = "model"', 'name = "a/model"') + text)
    return path


def options(script: str) -> list[str]:
    lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    return [word for line in lines for word in shlex.split(line)]


def test_the_script_asks_for_what_the_spec_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = submit(write(tmp_path, CLUSTER), dry=True)
    assert made.job is None
    assert options(made.script) == [
        "--job-name=spec",
        "--nodes=2",
        "--ntasks-per-node=4",
        "--gpus-per-node=4",
        "--cpus-per-task=8",
        "--mem=64G",
        "--time=1-12:00:00",
        "--partition=gpu",
        "--account=lab",
        "--signal=USR1@300",
        f"--output={tmp_path}/runs/spec/slurm.log",
        "--open-mode=append",
        "--requeue",
        "--exclusive",
        "--comment=a b",
    ]
    assert "\nmodule load cuda\n" in made.script
    assert f"-m taskrecipe resume {tmp_path}/runs/spec\n" in made.script
    assert not (tmp_path / "runs").exists(), "a dry submission makes nothing"


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=40))
def test_no_value_breaks_out_of_its_place(tmp_path: Path, text: str) -> None:
    """Whatever a folder or an option is called, bash sees one word there, and runs nothing of it."""
    folder = tmp_path / text.replace("/", "_")
    script = write_script(Submit(options=[f"--comment={text}"]), folder)
    assert f"--comment={text}" in options(script)
    shown = script.replace("srun", "printf '%s\\n'", 1).replace("ls --", ": --")
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == str(folder.absolute())
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("table", "line", "words"),
    [
        ("node = 2", 2, "did you mean 'nodes'?"),
        ('time = "90 minutes"', 2, "[submit].time must be a time such as '4:00:00'"),
        ("nodes = 0", 2, "[submit].nodes must be a number of at least 1"),
        ('options = ["exclusive"]', 2, "an option of sbatch such as '--exclusive'"),
        ('options = ["--nodes=2"]', 2, "--nodes is set by [submit].nodes"),
        ('setup = ["a\\nb"]', 2, "one line of text"),
        ('setup = ["export HF_TOKEN=hf_' + "a" * 30 + '"]', 2, "looks like a secret"),
        ('time = "0:01:00"', 2, "never trains"),
        ("nodes = 3", 2, "can't be split over 3 processes"),
        ('partition = "gpu; rm -rf /"', 2, "[submit].partition must be a name"),
    ],
)
def test_a_wrong_table_is_refused_at_its_line(table: str, line: int, words: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"[submit]\n{table}\n")
    with pytest.raises(SpecError) as refused:
        validate(path)
    text = str(refused.value)
    assert words in text
    assert f"spec.toml:{GLUE.count(chr(10)) + line}:" in text
    assert "hf_aaaa" not in text


def test_a_run_without_sbatch_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no sbatch here"):
        submit(write(tmp_path, CLUSTER))
    assert list((tmp_path / "runs").iterdir()) == []


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_submitted_run_is_queued_and_taken_by_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from taskrecipe.comparison.run_summary import RunSummary
    from taskrecipe.run.folder import RunFolder
    from taskrecipe.submission import job_states

    monkeypatch.chdir(tmp_path)
    fake_slurm(tmp_path / "bin", monkeypatch, sbatch="echo '17;lab'", squeue="echo 17 $STATE $RESTARTS")
    done = submit(write(tmp_path, CLUSTER))
    assert done.job == "17"
    assert json.loads((done.folder / "job.json").read_text())["job"] == "17"
    assert done.script == (done.folder / "job.sh").read_text()
    with RunFolder.create("spec") as other:
        assert other.path.name == "spec-2"
    for state, restarts, shown in [("PENDING", 0, "queued"), ("PENDING", 1, "requeued"), ("RUNNING", 0, "training")]:
        job_states._read_queue.cache_clear()
        monkeypatch.setenv("STATE", state)
        monkeypatch.setenv("RESTARTS", str(restarts))
        assert RunSummary.open(done.folder).state == shown
    fake_slurm(tmp_path / "bin", monkeypatch, squeue="exit 1")
    job_states._read_queue.cache_clear()
    assert RunSummary.open(done.folder).state == "queued", "where no batch system answers, the record counts"


def test_a_refused_job_is_reported_and_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fake_slurm(tmp_path / "bin", monkeypatch, sbatch="echo 'sbatch: error: invalid partition' >&2; exit 1")
    with pytest.raises(UsageError, match="SLURM has refused the job: sbatch: error: invalid partition"):
        submit(write(tmp_path, CLUSTER))
    assert list((tmp_path / "runs").iterdir()) == []


def test_only_the_table_of_a_run_can_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fake_slurm(tmp_path / "bin", monkeypatch, sbatch="echo 18")
    folder = submit(write(tmp_path, CLUSTER)).folder
    assert "--nodes=1\n" in submit(folder, set={"submit.nodes": 1}, dry=True).script
    with pytest.raises(UsageError, match=r"goes on as it is: leave --set train\.epochs=2 out"):
        submit(folder, set={"train.epochs": 2}, dry=True)
