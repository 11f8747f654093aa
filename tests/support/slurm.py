"""A real SLURM with two nodes on this machine, for tests: its daemons, and its configuration in a folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2
SelectType=select/cons_tres
JobRequeue=1
KillWait=15
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why SLURM can't be started here; None if it can."""
    missing = [name for name in PROGRAMS if _find(name) is None]
    if missing:
        return f"SLURM is not installed: no {', '.join(missing)} (Debian: apt-get install slurm-wlm munge)"
    return None if os.geteuid() == 0 else "SLURM's daemons are started by root"


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@contextmanager
def running_slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Run a cluster while the block does; yield the environment variables by which its commands find it."""
    configuration = folder / "slurm.conf"
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    configuration.write_text(CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=_free_ports(3)))
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        daemons.append(_start_munge(folder))
        daemons.append(_start("slurmctld", "-D", env=environment))
        daemons += [_start("slurmd", "-D", "-N", node, env=environment) for node in ("n1", "n2")]
        _wait_for_nodes(environment)
        yield {"SLURM_CONF": str(configuration)}
    finally:
        with suppress(OSError, subprocess.SubprocessError, AssertionError):
            subprocess.run(["scancel", "--user=root", "--full"], env=environment, timeout=20, check=False)
            _wait_until(lambda: not _run("squeue", "--noheader", env=environment), "empty queue")
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()


def _start_munge(folder: Path) -> subprocess.Popen[bytes]:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    names = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
    options = [f"--{name}={folder / value}" for name, value in names.items()]
    started = _start("munged", "--foreground", "--force", f"--key-file={key}", *options, env=dict(os.environ))
    _wait_until(lambda: (folder / "munge.socket").exists(), "munged")
    return started


def _start(name: str, *arguments: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    program = _find(name)
    assert program is not None
    return subprocess.Popen([program, *arguments], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _run(*command: str, env: dict[str, str]) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=False).stdout


def _wait_for_nodes(environment: dict[str, str]) -> None:
    def are_idle() -> bool:
        return _run("sinfo", "--noheader", "--format=%T %D", env=environment).split() == ["idle", "2"]

    _wait_until(are_idle, "two idle nodes")


def _wait_until(condition: object, what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, f"no {what} within {seconds} seconds"
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
