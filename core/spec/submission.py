"""`[submit]`: what `recipe submit` asks a batch system for. It has no effect on what is trained.

Annotations are no strings in this module, for the reason that `taskrecipe.spec.spec` gives.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from taskrecipe.spec.findings import Finding
from taskrecipe.spec.table import Count, Table

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Spec

NAME = r"^[A-Za-z0-9_.,:+@/-]{1,256}$"
LINE = r"^[^\x00-\x08\x0a-\x1f\x7f]+$"
OPTION = r"^--[a-z][a-z0-9-]*(=[^\x00-\x1f\x7f]+)?$"
MEMORY = r"^[1-9][0-9]{0,8}[KMGT]$"
TIME = r"^([0-9]{1,3}-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]$"

PATTERNS = {
    NAME: "a name of letters, digits and _ . , : + @ / -",
    LINE: "one line of text",
    OPTION: "an option of sbatch such as '--exclusive' or '--constraint=a100'",
    MEMORY: "an amount such as '64G'",
    TIME: "a time such as '4:00:00', or with days '1-12:00:00'",
}
"""What a text that matches each pattern is."""

Name = Annotated[str, Field(pattern=NAME)]
Line = Annotated[str, Field(pattern=LINE, max_length=4096)]
Option = Annotated[str, Field(pattern=OPTION, max_length=4096)]


class Submit(Table):
    """`[submit]`: what a job of the run asks a batch system for."""

    nodes: Annotated[int, Field(ge=1, le=100_000)] = Field(default=1, description="Machines.")
    processes: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Processes on each node; by default one for each of its GPUs, or one."
    )
    gpus: Annotated[int, Field(ge=0, le=1024)] = Field(default=0, description="GPUs of each node.")
    cpus: Count | None = Field(default=None, description="Cores of each process; by default the cluster's own.")
    memory: Annotated[str, Field(pattern=MEMORY)] | None = Field(
        default=None, description="Memory of each node, such as '64G'; by default the cluster's own."
    )
    time: Annotated[str, Field(pattern=TIME)] | None = Field(
        default=None,
        description="Time limit of one job: '4:00:00', or with days '1-12:00:00'. A run that takes longer goes on in "
        "the next job.",
    )
    partition: Name | None = Field(default=None, description="Partition of the cluster, or several with commas.")
    account: Name | None = Field(default=None, description="Account that the job is charged to.")
    qos: Name | None = Field(default=None, description="Quality of service.")
    save_before: Annotated[int, Field(ge=10, le=86_400)] = Field(
        default=120, description="Seconds before the time limit at which the run saves and ends its job."
    )
    requeue: bool = Field(
        default=True, description="Go on in another job after the time limit, and after the loss of a node."
    )
    options: list[Option] = Field(
        default=[], max_length=64, description='Further options of sbatch: ["--exclusive", "--constraint=a100"].'
    )
    setup: list[Line] = Field(
        default=[], max_length=256, description="Shell lines to run before training, such as 'module load cuda'."
    )

    @property
    def processes_per_node(self) -> int:
        """Processes on each node."""
        return self.processes or self.gpus or 1

    @property
    def seconds(self) -> int | None:
        """The time limit of one job in seconds; None where the cluster decides."""
        if self.time is None:
            return None
        days, _, clock = self.time.rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


OWN_OPTIONS = {
    "nodes": "nodes",
    "ntasks": "processes",
    "ntasks-per-node": "processes",
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "cpus-per-task": "cpus",
    "mem": "memory",
    "time": "time",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "signal": "save_before",
    "requeue": "requeue",
    "no-requeue": "requeue",
}
"""Options of sbatch that a key of `[submit]` sets."""


def find_submission_problems(spec: "Spec") -> Iterator[Finding]:
    """Yield what in `[submit]` contradicts another key."""
    submit = spec.submit
    if submit.seconds is not None and submit.seconds <= submit.save_before:
        message = (
            f"[submit].time is {submit.time}, so a run that saves {submit.save_before} seconds before never trains"
        )
        yield Finding(("submit", "time"), "conflict", message)
    for number, option in enumerate(submit.options):
        name = re.sub(r"^--|=.*", "", option, flags=re.DOTALL)
        if name in OWN_OPTIONS:
            message = f"--{name} is set by [submit].{OWN_OPTIONS[name]}; use that key"
            yield Finding(("submit", "options", number), "conflict", message)
    total, size = submit.nodes * submit.processes_per_node, spec.train.batch_size
    if total > 1 and size % (total * spec.train.first_accumulate):
        key = "nodes" if submit.nodes > 1 else "processes" if submit.processes else "gpus"
        message = (
            f"[train].batch_size {size} can't be split over {total} processes "
            f"({submit.nodes} nodes of {submit.processes_per_node}) with accumulate = {spec.train.accumulate}"
        )
        yield Finding(("submit", key), "uneven-batch", message)
