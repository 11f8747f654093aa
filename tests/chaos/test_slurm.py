"""A real SLURM with two nodes: srun joins its tasks, and a run goes on from job to job to the bits of one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.distributions import install
from tests.support.runs import GLUE, bits, results, train, write_spec
from tests.support.slurm import running_slurm, why_not

pytestmark = pytest.mark.chaos

RECIPE = Path(sys.executable).with_name("recipe")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if reason := why_not():
        pytest.skip(reason)
    with running_slurm(tmp_path_factory.mktemp("slurm")) as environment:
        yield {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}


def run(arguments: list[str], cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300)


def find_state(folder: Path, env: dict[str, str]) -> str:
    shown = run([str(RECIPE), "runs", str(folder), "--json"], folder.parent, env)
    return str(json.loads(shown.stdout)[0]["state"])


def test_srun_joins_the_tasks_of_two_nodes(cluster: dict[str, str], zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    local = train(zygote, spec, "local", "--processes", "2")
    command = ["srun", "--nodes=2", "--ntasks=2", str(RECIPE), "run", str(spec), "--out", "run"]
    done = run(command, tmp_path, cluster)
    assert done.returncode == 0, done.stderr
    assert bits(zygote, tmp_path / "run") == bits(zygote, local)
    assert done.stderr.count("finished after update 9") == 1, "one console"
    job = json.loads((tmp_path / "run" / "environment.json").read_text())["job"]
    assert job["nodes"] == ["n1", "n2"]


def install_slow_callback(folder: Path) -> None:
    """A callback that makes every update take as many seconds as SLOW says, so that any machine needs several jobs."""
    source = """
        import os
        import time

        from taskrecipe import Callback, Listener


        class Slow(Callback):
            def build(self):
                return SlowListener()


        class SlowListener(Listener):
            def on_event(self, event, control):
                if event.name == "update":
                    time.sleep(float(os.environ["SLOW"]))
    """
    install(folder, "recipe-slow", {"callbacks": {"slow": "recipe_slow:Slow"}}, {"recipe_slow": source})


def test_a_chain_of_jobs_ends_in_the_bits_of_one_run(cluster: dict[str, str], tmp_path: Path) -> None:
    install_slow_callback(tmp_path / "plugins")
    env = {**cluster, "PYTHONPATH": str(tmp_path / "plugins")}
    text = GLUE.replace("updates = 9", "updates = 100").replace("every = 3", "every = 100")
    text = text.replace("every = 1\nkeep", "every = 1000\nkeep")  # only SIGUSR1 saves in between
    table = '[[callbacks]]\nname = "slow"\n[submit]\nnodes = 2\ntime = "0:03:00"\nsave_before = 60\n'
    spec = write_spec(tmp_path, text + table)
    at_once = [str(RECIPE), "run", str(spec), "--out", "whole", "--processes", "2"]
    assert run(at_once, tmp_path, {**env, "SLOW": "0"}).returncode == 0
    submit = [str(RECIPE), "submit", str(spec), "--slurm", "--out", "chain"]
    submitted = run(submit, tmp_path, {**env, "SLOW": "1.5"})
    assert submitted.returncode == 0, submitted.stderr
    chain, states, end = tmp_path / "chain", set(), time.monotonic() + 1500
    while not (chain / "results.json").exists() or results(chain)["status"] != "finished":
        states.add(find_state(chain, env))
        assert states <= {"queued", "training", "requeued", "finished"}, (chain / "slurm.log").read_text()
        assert time.monotonic() < end, (chain / "slurm.log").read_text()
        time.sleep(1)
    printed = (chain / "slurm.log").read_text()
    assert printed.count("interrupted by SIGUSR1; checkpoint saved") >= 1, "it took several jobs"
    assert {"training", "requeued"} <= states
    fingerprints = [run([str(RECIPE), "fingerprint", name], tmp_path, env).stdout for name in ("chain", "whole")]
    assert fingerprints[0] == fingerprints[1] != ""
    assert find_state(chain, env) == "finished"


def test_a_job_that_gets_nowhere_is_not_repeated(cluster: dict[str, str], tmp_path: Path) -> None:
    """The time limit warns before the first update: the next job would not come further."""
    install_slow_callback(tmp_path / "plugins")
    env = {**cluster, "PYTHONPATH": str(tmp_path / "plugins"), "SLOW": "1000"}
    table = '[[callbacks]]\nname = "slow"\n[submit]\ntime = "0:01:00"\nsave_before = 30\nsetup = ["sleep 45"]\n'
    spec = write_spec(tmp_path, GLUE + table)
    submitted = run([str(RECIPE), "submit", str(spec), "--slurm", "--out", "run", "--json"], tmp_path, env)
    assert submitted.returncode == 0, submitted.stderr
    end = time.monotonic() + 240
    while find_state(tmp_path / "run", env) in ("queued", "training"):
        assert time.monotonic() < end
        time.sleep(1)
    assert find_state(tmp_path / "run", env) != "requeued"
