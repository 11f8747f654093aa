"""Two processes train as one does, and die together."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.runs import bits, log, results, resume, train, write_regression, write_spec

RECIPE = Path(sys.executable).with_name("recipe")


def start(arguments: list[str], cwd: Path, **env: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **env}
    return subprocess.Popen(
        [str(RECIPE), *arguments], cwd=cwd, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run_two(spec: Path, out: str, *options: str) -> Path:
    folder = spec.parent / out
    process = start(["run", str(spec), "--out", str(folder), "--processes", "2", *options], spec.parent)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return folder


@pytest.mark.chaos  # the next test compares them by command, and tests/training/test_two_processes.py in more detail
@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_processes_see_what_one_sees(accumulate: int, zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, dropout=0.0)
    options = ("--set", f"train.accumulate={accumulate}")
    one, two = train(zygote, spec, "one", *options), run_two(spec, "two", *options)
    for key, tolerance in (("loss", 1e-5), ("learning_rate", 0.0), ("grad_norm", 1e-3)):
        lists = [[line[key] for line in log(folder, "update")] for folder in (one, two)]
        assert lists[0] == pytest.approx(lists[1], rel=tolerance, abs=tolerance)
    evaluations = [[line["metrics"] for line in log(folder, "evaluate")] for folder in (one, two)]
    for first, second in zip(*evaluations, strict=True):
        assert first["accuracy"] == second["accuracy"]
        assert first["f1"] == second["f1"]
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)


def test_a_run_of_two_processes_goes_on_in_one(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, dropout=0.0)
    whole = train(zygote, spec, "whole")
    folder = run_two(spec, "two", "--set", "checkpoint.keep=100")
    for path in (folder / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > 5:
            subprocess.run(["rm", "-r", str(path)], check=True)
    done = resume(zygote, folder, "--processes", "1")
    assert done.code == 0, done.stderr
    losses = [[line["loss"] for line in log(each, "update")] for each in (whole, folder)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    own = [int(line) for line in listed.stdout.split()]
    return own + [grandchild for child in own for grandchild in children_of(child)]


def training(family: list[int]) -> list[int]:
    """Those of a launcher's descendants that train."""
    return [pid for pid in family if b"taskrecipe" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z":
            found.append(pid)
    return found


def started(spec: Path, out: str, *options: str) -> tuple[subprocess.Popen[str], Path]:
    """A long run that has taken its first updates."""
    folder = spec.parent / out
    options = (*options, "--set", "train.updates=100000", "--set", "checkpoint.every=50")
    process = start(["run", str(spec), "--out", str(folder), *options], spec.parent)
    end = time.monotonic() + 120
    while not (folder / "log.jsonl").exists() or '"update"' not in (folder / "log.jsonl").read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    return process, folder


def started_two(spec: Path, out: str) -> tuple[subprocess.Popen[str], Path]:
    return started(spec, out, "--processes", "2")


def the_error(printed: str) -> str:
    """Return the one line that says what went wrong."""
    [told] = [line for line in printed.splitlines() if line.startswith("error")]
    return told


@pytest.mark.parametrize("trials", [1, pytest.param(10, marks=pytest.mark.chaos)])
def test_a_dead_process_ends_all_and_leaves_no_orphan(trials: int, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    for trial in range(trials):
        process, _ = started_two(spec, f"trial-{trial}")
        family = children_of(process.pid)
        os.kill(training(family)[trial % 2], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 4, errors
        assert f"process {trial % 2 + 1} of 2 was ended by SIGKILL" in the_error(errors)
        time.sleep(0.5)
        assert alive(family) == []


def listening_addresses(pids: list[int]) -> set[str]:
    """Return the local addresses at which processes accept connections, as the kernel writes them."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].rpartition(":")[0])
    return found


@pytest.mark.chaos  # tests/run/test_loopback.py watches a run from Python
def test_nothing_listens_beyond_this_machine(tmp_path: Path) -> None:
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    process, _ = started_two(write_spec(tmp_path), "run")
    found = listening_addresses([process.pid, *children_of(process.pid)])
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert found, "the processes connect to each other over a socket"
    assert found <= loopback


def test_a_second_signal_ends_all_processes_at_once(zygote: Zygote, tmp_path: Path) -> None:
    process, folder = started_two(write_spec(tmp_path), "run")
    family = children_of(process.pid)
    for pid in training(family):
        os.kill(pid, signal.SIGSTOP)  # they can't save
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    assert process.poll() is None
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - begin < 20
    assert process.returncode == 143, errors
    assert alive(family) == []
    done = resume(zygote, folder, "--processes", "1", "--set", "train.updates=60", "--allow", "train.updates")
    assert done.code == 0, done.stderr


def test_a_killed_launcher_takes_its_processes_along(tmp_path: Path) -> None:
    process, _ = started_two(write_spec(tmp_path), "run")
    family = children_of(process.pid)
    process.kill()
    process.communicate(timeout=30)
    end = time.monotonic() + 60
    while alive(family) and time.monotonic() < end:
        time.sleep(0.1)
    assert alive(family) == []


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.chaos)]
)
def test_a_signal_to_the_launcher_saves(signum: int, code: int, zygote: Zygote, tmp_path: Path) -> None:
    process, folder = started_two(write_spec(tmp_path), "run")
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert errors.count("error") == 1, errors
    assert results(folder)["status"] == "stopped"
    step = results(folder)["updates"]
    assert (folder / "checkpoints" / f"step-{step}").is_dir()
    assert json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["event"] == "end"
    assert bits(zygote, folder)


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        pytest.param("data.files.validation='none.csv'", 3, "there is no file", marks=pytest.mark.chaos),
        pytest.param("data.columns.label='labels'", 3, "labels", marks=pytest.mark.chaos),
        ("train.learning_rate=1e9", 4, "the update was not taken"),
    ],
)
def test_what_goes_wrong_is_printed_once(change: str, code: int, words: str, tmp_path: Path) -> None:
    """Whichever process it happens in: what the others meet because of it is not worth telling."""
    spec = write_regression(tmp_path, "1.5")
    options = ["--set", change, "--set", "train.clip_norm=0", "--set", "optimizer.name='sgd'"]
    process = start(["run", str(spec), "--out", str(tmp_path / "run"), "--processes", "2", *options], tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert words in the_error(errors)
    assert "Traceback" not in errors


@pytest.mark.parametrize("trials", [1, pytest.param(10, marks=pytest.mark.chaos)])
def test_a_signal_to_one_process_stops_all_after_the_same_update(trials: int, tmp_path: Path) -> None:
    """Processes that stopped at different updates would wait for one another."""
    spec, chance = write_spec(tmp_path), random.Random(trials)
    for trial in range(trials):
        process, folder = started_two(spec, f"trial-{trial}")
        time.sleep(chance.uniform(0, 0.5))
        os.kill(training(children_of(process.pid))[trial % 2], signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 143, errors
        assert results(folder)["status"] == "stopped"


def test_a_dead_data_worker_ends_the_run_with_a_word_about_it(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    # With no evaluation, whose workers would be started anew, the ones there are at the first update stay.
    process, folder = started(spec, "run", "--set", "data.workers=2", "--set", "evaluate.every=100000")
    workers = children_of(process.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 4, errors
    assert "worker" in the_error(errors)
    assert "recipe resume" in the_error(errors)
    assert "Traceback" not in errors
    assert alive(workers) == []
    assert resume(zygote, folder, "--set", "train.updates=9", "--allow", "train.updates").code == 0


def test_a_process_that_is_stopped_ends_the_run(zygote: Zygote, tmp_path: Path) -> None:
    process, folder = started(write_spec(tmp_path), "run", "--processes", "2", "--set", "launch.timeout=15")
    family = children_of(process.pid)
    stopped = training(family)[1]
    before = time.monotonic()
    os.kill(stopped, signal.SIGSTOP)
    _, errors = process.communicate(timeout=120)
    assert time.monotonic() - before < 60
    assert process.returncode == 4, errors
    assert f"process 2 of 2 (process id {stopped}) sent no heartbeat for 15 seconds" in the_error(errors)
    assert alive(family) == []
    assert resume(zygote, folder, "--set", "train.updates=9", "--allow", "train.updates", "--processes", "1").code == 0
