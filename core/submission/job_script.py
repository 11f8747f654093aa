"""The batch script of a run: what it asks SLURM for, and how one job follows another until the run has finished."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template

from taskrecipe.run.folder_names import CHECKPOINTS
from taskrecipe.spec.submission import Submit

JOB_LOG = "slurm.log"
"""What the jobs of a run print, one after another."""

_SAVED = 128 + signal.SIGUSR1
"""The exit code of a run that SIGUSR1 has stopped after a checkpoint."""

_SCRIPT = """\
#!/bin/bash
# Written by `recipe submit`. Every job goes on from the newest checkpoint of the run.
$directives

$setup
saved() { ls -- $checkpoints 2>/dev/null; }
before=$$(saved)
$command
code=$$?
$end"""

_REQUEUE = """\
# Before its time limit the job gets SIGUSR1, and the run saves. It goes on in another job if this one got anywhere.
if [ "$$code" -eq $code ] && [ "$$(saved)" != "$$before" ]; then
    scontrol requeue "$$SLURM_JOB_ID" && exit 0
fi
exit "$$code"
"""


def write_script(submit: Submit, folder: Path) -> str:
    """Return the script of a job that goes on with the run in a folder. Every value in it is quoted."""
    folder = folder.absolute()
    end = Template(_REQUEUE).substitute(code=_SAVED) if submit.requeue else 'exit "$code"\n'
    return Template(_SCRIPT).substitute(
        directives="\n".join(f"#SBATCH {shlex.quote(option)}" for option in _list_options(submit, folder)),
        setup="".join(f"{line}\n" for line in submit.setup),
        checkpoints=shlex.quote(str(folder / CHECKPOINTS)),
        command=shlex.join(_make_command(submit, folder)),
        end=end,
    )


def _list_options(submit: Submit, folder: Path) -> Iterator[str]:
    asked = {
        "job-name": folder.name,
        "nodes": submit.nodes,
        "ntasks-per-node": submit.processes_per_node,
        "gpus-per-node": submit.gpus or None,
        "cpus-per-task": submit.cpus,
        "mem": submit.memory,
        "time": submit.time,
        "partition": submit.partition,
        "account": submit.account,
        "qos": submit.qos,
        "signal": f"{signal.SIGUSR1.name.removeprefix('SIG')}@{submit.save_before}",
        "output": str(folder / JOB_LOG).replace("%", "%%"),
        "open-mode": "append",
    }
    yield from (f"--{name}={value}" for name, value in asked.items() if value is not None)
    yield "--requeue" if submit.requeue else "--no-requeue"
    yield from submit.options


def _make_command(submit: Submit, folder: Path) -> list[str]:
    """Return the command of all tasks. A task that ends does not end the others: they notice, and say why."""
    cores = [] if submit.cpus is None else [f"--cpus-per-task={submit.cpus}"]  # srun doesn't take it from the job
    return ["srun", "--kill-on-bad-exit=0", *cores, sys.executable, "-m", "taskrecipe", "resume", str(folder)]
