"""Which launcher started this process, and as which of several, follows from its environment."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskrecipe.errors import UsageError
from taskrecipe.run import interfaces, slurm
from taskrecipe.run.launchers import Seat, find_seat, is_first, is_launched

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STEP = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[07-08],fat1",
    "SLURM_JOB_ID": "123456",
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, *STEP, "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_a_process_alone_has_no_seat() -> None:
    assert find_seat() is None
    assert not is_launched()
    assert is_first()


def test_torchrun_gives_the_numbers_and_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, dict(zip(NAMES, ["5", "8", "1", "4", "10.0.0.1", "29500"], strict=True)))
    seat = find_seat()
    assert seat == Seat("torchrun", 5, 8, 1, 4)
    assert seat.find_store() == ("10.0.0.1", 29500)
    assert not is_first()


def test_srun_gives_the_numbers_and_the_place_follows_from_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, STEP)
    asked = "NodeName=gpu07 Arch=x86_64 NodeAddr=10.1.0.7 NodeHostName=gpu07"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, asked))
    seat = find_seat()
    assert seat == Seat("srun", 3, 5, 1, 2)
    address, port = seat.find_store()
    assert address == "10.1.0.7"
    assert slurm.FIRST_PORT <= port < slurm.FIRST_PORT + slurm.PORTS
    set_all(monkeypatch, {"MASTER_ADDR": "other", "MASTER_PORT": "7"})
    assert seat.find_store() == ("other", 7), "what the user sets counts"


def test_a_batch_script_or_a_single_task_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "5"})
    assert find_seat() is None
    set_all(monkeypatch, {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"})
    assert find_seat() is None


@pytest.mark.parametrize("odd", ["x", "", "-1", "1.5", "９"])
def test_odd_numbers_are_no_launcher(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {**STEP, "SLURM_PROCID": odd, "RANK": odd, "WORLD_SIZE": odd})
    assert find_seat() is None


def test_processes_without_a_place_are_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(UsageError, match="set MASTER_ADDR"):
        find_seat().find_store()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu[07-08,11],login", ["gpu07", "gpu08", "gpu11", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
    ],
)
def test_lists_of_hosts_are_read(text: str, names: list[str]) -> None:
    assert slurm.expand_hosts(text) == names


@given(st.text(max_size=60))
def test_any_list_of_hosts_gives_names_or_nothing(text: str) -> None:
    assert isinstance(slurm.expand_hosts(text), list)
    assert isinstance(slurm.expand_counts(text), list)


def test_an_interface_that_is_not_there_is_refused_with_those_there_are() -> None:
    assert interfaces.find_address(interfaces.LOOPBACK) == "127.0.0.1"
    with pytest.raises(UsageError, match=f"'eth77', but .* has the interfaces .*{interfaces.LOOPBACK}"):
        interfaces.find_address("eth77")


def test_the_way_to_this_machine_is_loopback() -> None:
    assert interfaces.find_own_address("127.0.0.1") == "127.0.0.1"
    assert interfaces.find_interface("127.0.0.1") == interfaces.LOOPBACK
    assert interfaces.choose_address(None, "localhost", one_machine=False) == "127.0.0.1"
