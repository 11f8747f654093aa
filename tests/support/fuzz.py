"""Random damage to specs that work: to their data, their model folder and the environment of the command.

`python -m tests.support.fuzz SECONDS [SEED]` looks for violations as long as it is allowed to.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.commands import Started, Zygote

CODES = {0, 1, 2, 3, 4}
"""The documented exit codes; 5 is for faulty plugins, and there are none here. 130 and 143 need a signal."""
REFUSED = {2, 3}
LIMIT = 90.0
"""Seconds that a command may take. They take about one; two busy cores make it ten."""

RECIPES: dict[str, tuple[dict[str, Any], str]] = {
    "glue": ({"name": "mrpc"}, "csv"),
    "clm": ({"length": 16}, "jsonl"),
    "mlm": ({"length": 16}, "txt"),
    "swag": ({}, "jsonl"),
    "token_classification": ({"max_length": 64}, "parquet"),
    "question_answering": ({"max_length": 96, "stride": 16}, "jsonl"),
    "seq2seq": ({"source_length": 32, "target_length": 16}, "csv"),
    "two_tower": ({}, "csv"),
    "image_classification": ({}, "parquet"),
    "detection": ({}, "parquet"),
}


@dataclass
class Case:
    """A folder with a spec that works, and how a command is to be run there."""

    folder: Path
    random: random.Random
    env: dict[str, str] = field(default_factory=dict)
    constraints: dict[str, Any] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    @property
    def data_files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("data/*"))

    @property
    def model_files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("model/*") if path.is_file())


# Specs that work -------------------------------------------------------------------------------------


def write_base(recipe: str, folder: Path, zygote: Zygote) -> None:
    """Write data, model and spec of a recipe into `folder`, and a finished run of it."""
    from taskrecipe.plugins.registry import installed
    from taskrecipe.spec.spec import Spec

    task, ending = RECIPES[recipe]
    values = {"spec_version": 1, "recipe": recipe, "task": task, "model": {"name": "model"}}
    values |= {"train": {"updates": 2, "learning_rate": 1e-3}, "data": {"path": "x/y"}}
    made = installed().recipe(recipe)(Spec.model_validate(values))
    (folder / "data").mkdir(parents=True)
    splits = made.sample(folder / "model")
    for split, rows in splits.items():
        write_rows(rows.select(range(min(len(rows), 24 if split == "train" else 8))), folder / f"data/{split}.{ending}")
    write_spec(folder, recipe, random.Random(0), plain=True)
    done = zygote.run("run", "spec.toml", "--out", "run", cwd=folder)
    assert done.code == 0, f"{recipe}: {done.stderr}"


def write_rows(rows: Any, path: Path) -> None:
    if path.suffix == ".csv":
        rows.to_csv(str(path), index=False)
    elif path.suffix == ".jsonl":
        rows.to_json(str(path))
    elif path.suffix == ".txt":
        path.write_text("".join(f"{line}\n" for line in rows["text"]))
    else:
        rows.to_parquet(str(path))


def write_spec(folder: Path, recipe: str, chance: random.Random, *, plain: bool = False) -> None:
    """Write a valid spec that names the files in `folder`."""
    import tomlkit

    task, ending = RECIPES[recipe]
    files = {path.stem: f"data/{path.name}" for path in sorted((folder / "data").glob(f"*.{ending}"))}
    spec: dict[str, Any] = {"spec_version": 1, "recipe": recipe, "task": task, "model": {"name": "model"}}
    spec["data"] = {"files": files}
    spec["train"] = {"updates": 2, "batch_size": 4, "learning_rate": 1e-3}
    spec["launch"] = {"device": "cpu"}
    if not plain:
        spec["seed"] = chance.randrange(5)
        spec["train"] |= {"accumulate": chance.choice([1, 2, 4]), "order": chance.choice(["shuffled", "sequential"])}
        spec["optimizer"] = {"name": chance.choice(["adamw", "sgd", "adafactor", "lion"])}
        spec["schedule"] = {"name": chance.choice(["linear", "constant", "cosine"])}
        spec["evaluate"] = {"every": chance.choice([1, "epoch", "end"])}
        spec["checkpoint"] = {"every": chance.choice([1, 2, "epoch"]), "keep": chance.choice([1, 3])}
        spec["model"]["pretrained"] = chance.random() < 0.7
        if chance.random() < 0.2:
            spec["train"]["ema"] = 0.9
        if chance.random() < 0.2:
            spec["data"]["workers"] = 1
        if recipe == "clm" and chance.random() < 0.3:
            spec["data"]["streaming"] = True
    (folder / "spec.toml").write_text(tomlkit.dumps(spec))


# Damage ----------------------------------------------------------------------------------------------


def truncate(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content) + 1)])


def flip_bytes(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 3, 50]) if content else 0):
        content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content)


def insert_bytes(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    at = chance.randrange(len(content) + 1)
    extra = chance.choice([b"\0", b'"', b"\xff\xfe", b"\n\n", b"\r", b",,,,", b"\x1b[2J", b"{", b"\xef\xbb\xbf", b"'"])
    path.write_bytes(content[:at] + extra + content[at:])


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def become_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def become_link_to_itself(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def become_pipe(path: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def forbid(path: Path, chance: random.Random) -> None:
    path.chmod(0)


def keep_one_line(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[: chance.choice([1, 2, 3])]))


def shuffle_lines(path: Path, chance: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    chance.shuffle(lines)
    path.write_bytes(b"".join(lines))


ODD_VALUES = (None, -1, 0, 3, 10**18, 1.5, "", "x", "\ud83d\ude00", True, [], [1], {}, {"a": 1}, float("nan"), [None])


def change_json(path: Path, chance: random.Random) -> None:
    """Change a value somewhere in a JSON file, or in a line of one."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = chance.randrange(len(lines))
    try:
        tree = json.loads(lines[at])
    except ValueError:
        return
    lines[at] = json.dumps(change_tree(tree, chance))
    path.write_text("\n".join(lines) + "\n")


def change_tree(tree: Any, chance: random.Random) -> Any:
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    if not keys or chance.random() < 0.05:
        return chance.choice(ODD_VALUES)
    key = chance.choice(keys)
    if chance.random() < 0.2:
        del tree[key]
    elif isinstance(tree[key], dict | list) and chance.random() < 0.7:
        tree[key] = change_tree(tree[key], chance)
    else:
        tree[key] = chance.choice(ODD_VALUES)
    return tree


def change_cell(path: Path, chance: random.Random) -> None:
    """Change a cell of a table."""
    lines = path.read_text().splitlines()
    at = chance.randrange(len(lines))
    cells = lines[at].split(",")
    cells[chance.randrange(len(cells))] = chance.choice(
        ["", "nan", "-1", "1e400", '"', "x" * 70_000, "\x1b[31m", "0.5"]
    )
    lines[at] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")


Change = Callable[[Path, random.Random], None]
ON_FILES: list[Change] = [truncate, flip_bytes, insert_bytes, delete, empty, become_folder, become_link_to_itself]
ON_FILES += [become_pipe, forbid]
ON_LINES: list[Change] = [keep_one_line, shuffle_lines]


def damage_data(case: Case) -> None:
    path = case.random.choice(case.data_files)
    more = {".csv": [change_cell] * 4, ".jsonl": [change_json] * 4}.get(path.suffix, [])
    apply(case, path, [*ON_FILES, *(ON_LINES if path.suffix != ".parquet" else []), *more])


def damage_model(case: Case) -> None:
    path = case.random.choice(case.model_files)
    apply(case, path, [*ON_FILES, *([change_json] * 12 if path.suffix == ".json" else [])])


def damage_run(case: Case) -> None:
    files = sorted(path for path in case.folder.glob("run/**/*") if path.is_file())
    path = case.random.choice(files)
    apply(case, path, [*ON_FILES, *([change_json] * 5 if path.suffix in (".json", ".jsonl") else [])])


def apply(case: Case, path: Path, changes: list[Change]) -> None:
    if not path.is_file():  # an earlier damage has removed or replaced it
        return
    change = case.random.choice(changes)
    case.damage.append(f"{change.__name__} {path.relative_to(case.folder)}")
    with suppress(UnicodeDecodeError):
        change(path, case.random)


def damage_environment(case: Case) -> None:
    name = case.random.choice(sorted(ENVIRONMENTS))
    case.damage.append(name)
    ENVIRONMENTS[name](case)


def _set(**values: str) -> Callable[[Case], None]:
    return lambda case: case.env.update({key: value.format(folder=case.folder) for key, value in values.items()})


def _constrain(**values: Any) -> Callable[[Case], None]:
    return lambda case: case.constraints.update(values)


def _read_only(name: str) -> Callable[[Case], None]:
    return lambda case: ((case.folder / name).mkdir(exist_ok=True), (case.folder / name).chmod(0o555))[0]


def _limit_file_size(case: Case) -> None:
    case.constraints["file_size"] = case.random.choice([0, 100, 5_000, 100_000, 1_000_000])


def _read_only_cache(case: Case) -> None:
    _read_only("cache")(case)
    _set(TASKRECIPE_CACHE="{folder}/cache", HF_DATASETS_CACHE="{folder}/cache")(case)


def _read_only_temporary(case: Case) -> None:
    _read_only("tmp")(case)
    _set(TMPDIR="{folder}/tmp")(case)


def _full_disk(case: Case) -> None:
    case.constraints["disk"] = case.random.choice([100, 400, 1_000])  # kilobytes


ENVIRONMENTS: dict[str, Callable[[Case], None]] = {
    "no HOME": _constrain(unset=["HOME"]),
    "HOME is missing": _set(HOME="{folder}/nowhere"),
    "HOME is a file": _set(HOME="{folder}/spec.toml"),
    "cache is a file": _set(TASKRECIPE_CACHE="{folder}/spec.toml"),
    "cache in a missing folder": _set(TASKRECIPE_CACHE="{folder}/a/b/c"),
    "data set cache is a file": _set(HF_DATASETS_CACHE="{folder}/spec.toml"),
    "read-only cache": _read_only_cache,
    "read-only temporary folder": _read_only_temporary,
    "no temporary folder": _set(TMPDIR="{folder}/nowhere"),
    "read-only working folder": lambda case: case.folder.chmod(0o555),
    "deleted working folder": _constrain(deleted_cwd=True),
    "closed stderr": _constrain(close=[2]),
    "closed stdout": _constrain(close=[1]),
    "closed everything": _constrain(close=[0, 1, 2]),
    "full stderr": _constrain(full=[2]),
    "full stdout and stderr": _constrain(full=[1, 2]),
    "file size limit": _limit_file_size,
    "few open files": _constrain(open_files=24),
    "full disk": _full_disk,
    "ascii": _set(LC_ALL="C", LANG="C", PYTHONIOENCODING="ascii"),
    "odd terminal": _set(TERM="nonsense", COLUMNS="-3", LINES="x", FORCE_COLOR="1"),
    "odd numbers": _set(SLURM_NTASKS="x", SLURM_PROCID="y"),
}

DAMAGES = [damage_data, damage_model, damage_environment, damage_run]


# One example -----------------------------------------------------------------------------------------

COMMANDS: list[list[str]] = [
    ["validate", "{spec}"],
    ["run", "{spec}", "--out", "{folder}/new"],
    ["run", "{spec}", "--out", "{folder}/new"],
    ["run", "{spec}"],
    ["run", "{spec}", "--dry"],
    ["run", "{spec}", "--out", "{folder}/run"],
    ["run", "{spec}", "--out", "{folder}/run", "--resume"],
    ["resume", "{folder}/run"],
    ["resume", "{folder}/run", "--set", "train.updates=3"],
    ["resume", "{folder}/run", "--set", "train.updates=3", "--allow", "train.updates"],
    ["fingerprint", "{folder}/run", "--at", "best"],
    ["evaluate", "{folder}/run"],
    ["evaluate", "{folder}/run", "--at", "last", "--json"],
    ["evaluate", "{folder}/run", "--data", "{data}"],
    ["predict", "{folder}/run", "{data}", "-o", "{folder}/answers.jsonl"],
    ["predict", "{folder}/run", "{data}", "-o", "{folder}/answers.jsonl", "--skip-bad"],
    ["preview", "{spec}"],
    ["preview", "{folder}/run", "--html", "{folder}/preview.html"],
    ["report", "{folder}/run", "-o", "{folder}/report.html"],
    ["export", "{folder}/run", "--to", "hf", "-o", "{folder}/exported"],
    ["compare", "{folder}/run", "{folder}/run"],
    ["diff", "{spec}", "{folder}/run"],
    ["runs", "{folder}"],
]


class Fuzz:
    """Makes examples, runs them, and says which laws they broke."""

    def __init__(self, root: Path, zygote: Zygote) -> None:
        self.root, self.zygote = root, zygote
        self.bases: dict[str, Path] = {}

    def base(self, recipe: str) -> Path:
        if recipe not in self.bases:
            folder = self.root / f"base-{recipe}"
            write_base(recipe, folder, self.zygote)
            self.bases[recipe] = folder
        return self.bases[recipe]

    def make(self, seed: int, folder: Path) -> tuple[Case, list[str]]:
        """The example of a seed: a damaged copy of what works, and the arguments of a command."""
        chance = random.Random(seed)
        recipe = chance.choices(list(RECIPES), [8, 3, 3, *[1] * (len(RECIPES) - 3)])[0]  # some import more than others
        base = self.base(recipe)
        shutil.copytree(base, folder, symlinks=True)
        record = folder / "run" / "environment.json"  # it names the folder that holds the data
        record.write_text(record.read_text().replace(str(base), str(folder)))
        if chance.random() < 0.7:
            write_spec(folder, recipe, chance)
        case = Case(folder, chance, {"TASKRECIPE_CACHE": str(self.root / "cache")}, damage=[recipe])
        for damage in chance.choices(DAMAGES, [3, 4, 3, 1], k=chance.choice([1, 1, 1, 2])):
            damage(case)
        data = next((path for path in case.data_files if "validation" in path.name), folder / "none.csv")
        known = {"spec": folder / "spec.toml", "folder": folder, "data": data}
        return case, [argument.format(**known) for argument in chance.choice(COMMANDS)]

    def violations(self, seed: int) -> list[str]:
        """What is wrong with how the example of this seed ends."""
        folder = self.root / f"case-{seed}"
        case, arguments = self.make(seed, folder)
        shown = f"seed {seed}: {'; '.join(case.damage)}: {' '.join(arguments)}"
        try:
            with disk(case):
                before = digest(folder / "run")
                done, problem = self.execute(case, arguments)
                found = [problem] if problem else list(broken_laws(done, before, digest(folder / "run")))
            return [f"{shown}\n  {law}\n  {done.stderr[-1500:]}" for law in found]
        finally:
            subprocess.run(["chmod", "-R", "u+rwx", str(folder)], check=False, stderr=subprocess.DEVNULL)
            shutil.rmtree(folder, ignore_errors=True)

    def execute(self, case: Case, arguments: list[str]) -> tuple[Started, str | None]:
        started = self.zygote.start(*arguments, cwd=case.folder, constraints=case.constraints, **case.env)
        try:
            started.wait(LIMIT)
        except TimeoutError:
            return started, f"still running after {LIMIT:g} seconds"
        return started, None


def broken_laws(done: Started, before: str, after: str) -> Iterator[str]:
    if done.code not in CODES:
        yield f"exit code {done.code}"
    if "Traceback" in done.stderr:
        yield "a traceback was printed"
    if "This is a bug" in done.stderr:
        yield "an error that comes from outside was unexpected"
    if done.code in REFUSED and before != after:
        yield "a refused command changed the run's folder"


def digest(folder: Path) -> str:
    """One number for all files of a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else str(path.is_symlink()).encode()
        found.update(f"{path.relative_to(folder)}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return found.hexdigest()


@contextmanager
def disk(case: Case) -> Iterator[None]:
    """A small disk for new runs, where mounting is allowed."""
    size = case.constraints.pop("disk", None)
    target = case.folder / "runs"
    if size is None:
        yield
        return
    case.folder.chmod(0o755)
    target.mkdir(exist_ok=True)
    (case.folder / "new").symlink_to("runs/new")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(target)]
    mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(target)], check=False)


def search(seconds: float, seed: int) -> int:
    """Try examples for a while and print what is found; return how many were tried."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    os.environ |= {"TASKRECIPE_CACHE": str(root / "cache"), "PYTHONPATH": str(Path(__file__).parents[2])}
    zygote, end, first = Zygote(root), time.monotonic() + seconds, seed
    try:
        fuzz = Fuzz(root, zygote)
        while time.monotonic() < end:
            for violation in fuzz.violations(seed):
                print(violation, flush=True)
            seed += 1
            if (seed - first) % 50 == 0:
                print(f"{seed - first} examples", flush=True)
    finally:
        zygote.close()
        shutil.rmtree(root, ignore_errors=True)
    return seed - first


if __name__ == "__main__":
    tried = search(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(f"{tried} examples were tried")
