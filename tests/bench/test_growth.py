"""What rows, text, plugins and processes cost as they become more: time up to the first update, and memory.

Costs are processor time beyond that of a tiny run, for each row or byte. GROWTH_ROWS and GROWTH_MEGABYTES choose other
sizes: GROWTH_ROWS=10000,100000 pytest -m bench -s tests/bench/test_growth.py
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.processruns import run_module
from tests.support.sidebyside import compare

pytestmark = [pytest.mark.bench, pytest.mark.filterwarnings("default")]

ROWS = [int(size) for size in os.environ.get("GROWTH_ROWS", "10000,100000,1000000").split(",")]
MEGABYTES = [int(size) for size in os.environ.get("GROWTH_MEGABYTES", "10,100").split(",")]
TINY = 200

HEAD = """\
spec_version = 1
[train]
updates = 1
batch_size = 16
learning_rate = 1e-4
order = "{order}"
[evaluate]
every = "end"
[log]
every = 1
"""

GLUE = """\
[task]
name = "mrpc"
[model]
name = "model"
[data.files]
train = "train.csv"
validation = "validation.csv"
"""

CLM = """\
[task]
length = 128
size = "tiny"
[task.tokenizer]
vocab_size = 4000
[model]
type = "gpt2"
[data.files]
train = "train.txt"
validation = "validation.txt"
"""


@dataclass(frozen=True)
class Cost:
    """What a run took up to its first update."""

    cpu: float
    memory: float

    def beyond(self, other: Cost, size: int) -> Cost:
        """The cost beyond another run's, for each of `size`."""
        return Cost((self.cpu - other.cpu) / size, (self.memory - other.memory) / size)


def make_sentences(count: int) -> list[str]:
    from taskrecipe.text.sample_text import sentence

    generator = np.random.default_rng(0)
    return [sentence(generator) for _ in range(count)]


def write_rows(folder: Path, count: int) -> Path:
    from taskrecipe.text.sample_text import vocabulary, write_tiny_bert

    folder.mkdir()
    write_tiny_bert(folder / "model", vocabulary(), hidden_size=32, intermediate_size=32)
    pool, choice = make_sentences(2000), random.Random(0)
    for split, rows in (("train", count), ("validation", max(20, count // 100))):
        with (folder / f"{split}.csv").open("w") as file:
            file.write("sentence1,sentence2,label\n")
            file.writelines(f"{split} {n} {choice.choice(pool)},{choice.choice(pool)},{n % 2}\n" for n in range(rows))
    (folder / "spec.toml").write_text('recipe = "glue"\n' + HEAD.format(order="bucketed") + GLUE)
    return folder


def write_text(folder: Path, size: int) -> Path:
    folder.mkdir()
    pool, choice = make_sentences(2000), random.Random(0)
    for split, total in (("train", size), ("validation", 20_000)):
        with (folder / f"{split}.txt").open("w") as file:
            written = 0
            while written < total:
                written += file.write(" ".join(choice.choices(pool, k=20)) + f" {written}\n")
    (folder / "spec.toml").write_text('recipe = "clm"\n' + HEAD.format(order="shuffled") + CLM)
    return folder


def measure(folder: Path, out: str) -> Cost:
    environment = {
        **os.environ,
        "TASKRECIPE_CACHE": str(folder / "cache"),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.support.growth_process", str(folder / "spec.toml"), str(folder / out)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Cost(found["cpu"], found["memory"])


def show_growth(title: str, unit: str, costs: dict[int, dict[str, Cost]], tiny: dict[str, Cost]) -> None:
    """Print what a row or byte costs at each size, as ratios to the first size."""
    sizes = list(costs)
    print(f"\n{title}: cost of a {unit} beyond a tiny run, ratio to that at {sizes[0]:,}")
    base = costs[sizes[0]]["first"].beyond(tiny["first"], sizes[0])
    for size in sizes:
        first = costs[size]["first"].beyond(tiny["first"], size)
        second = costs[size]["second"].beyond(tiny["second"], size)
        print(
            f"  {size:>13,}   first run {first.cpu / base.cpu:5.2f}   second run {second.cpu / base.cpu:6.3f}   "
            f"memory {first.memory:6.1f} bytes a {unit}, second run {second.memory:6.1f}"
        )


def run_sizes(sizes: list[int], write: Any, folder: Path) -> dict[int, dict[str, Cost]]:
    """Measure a first run of each size and some second ones, of which the best counts: a start alone varies."""
    measure(write(folder / "warm up", sizes[0]), "first")  # modules are compiled, files are read into memory
    costs: dict[int, dict[str, Cost]] = {}
    for size in sizes:
        rounds = 3 if size == sizes[0] else 1  # all sizes are compared with the first
        places = [write(folder / f"{size} {number}", size) for number in range(rounds)]
        first = _take_least([measure(place, "first") for place in places])
        second = _take_least([measure(places[0], f"second {number}") for number in range(3)])
        costs[size] = {"first": first, "second": second}
    return costs


def _take_least(costs: list[Cost]) -> Cost:
    return Cost(min(cost.cpu for cost in costs), min(cost.memory for cost in costs))


def test_rows(tmp_path: Path) -> None:
    """Goals: linear time; a second run pays nothing for a row but its place in the order; memory is flat."""
    costs = run_sizes([TINY, *ROWS], write_rows, tmp_path)
    tiny = costs.pop(TINY)
    show_growth("rows of a csv, tokenized", "row", costs, tiny)
    last = ROWS[-1]
    first, second = (costs[last][run].beyond(tiny[run], last) for run in ("first", "second"))
    if last >= 100_000:  # else a tiny run takes nearly as long
        assert second.cpu < 0.1 * first.cpu
        assert max(first.memory, second.memory) < 1000


def test_text(tmp_path: Path) -> None:
    """The same for text that a tokenizer is trained on, and that is cut into rows. Memory is flat from the first size.

    Below it, what is kept in memory because it is small grows with the text.
    """
    sizes = [size * 10**6 for size in MEGABYTES]
    costs = run_sizes([20_000, *sizes], write_text, tmp_path)
    tiny = costs.pop(20_000)
    show_growth("text for a model from scratch", "byte", costs, tiny)
    first, second = (costs[sizes[-1]][run].beyond(tiny[run], sizes[-1]) for run in ("first", "second"))
    assert second.cpu < 0.1 * first.cpu
    if sizes[-1] >= 2 * sizes[0]:
        growth = costs[sizes[-1]]["first"].beyond(costs[sizes[0]]["first"], sizes[-1] - sizes[0])
        assert growth.memory < 1


def test_tokenizing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: at least as fast as the faster of `datasets.map(num_proc)` and the tokenizer's own `encode_batch`."""
    import time

    from datasets import Dataset, disable_progress_bars

    from taskrecipe.data.cache import map_rows
    from taskrecipe.text import encode_texts, vocabulary, word_tokenizer

    disable_progress_bars()
    monkeypatch.setenv("TASKRECIPE_CACHE", str(tmp_path))
    tokenizer, pool = word_tokenizer(vocabulary()), make_sentences(2000)
    count = min(ROWS[-1], 200_000)
    rows = Dataset.from_dict({"text": [f"{pool[n % 2000]} {pool[n * 7 % 2000]}" for n in range(count)]})
    cores = len(os.sched_getaffinity(0))

    def seconds(work: Any) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def call(batch: dict[str, list[str]]) -> dict[str, Any]:
        return dict(tokenizer(batch["text"], truncation=True, max_length=128))

    def encode_batch() -> pa.Table:
        """As few steps as possible: all texts at once, and their tokens into a table."""
        tokenizer.backend_tokenizer.enable_truncation(128)
        made = tokenizer.backend_tokenizer.encode_batch(rows["text"][:])
        names = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}
        return pa.table({name: pa.array([getattr(one, of) for one in made]) for name, of in names.items()})

    def ours() -> Dataset:
        return map_rows(rows, lambda batch: encode_texts(tokenizer, batch["text"], max_length=128))

    contenders = {
        "datasets.map(num_proc)": lambda: seconds(
            lambda: rows.map(call, batched=True, num_proc=cores, remove_columns=["text"], load_from_cache_file=False)
        ),
        "encode_batch, into a table": lambda: seconds(encode_batch),
        "recipe": lambda: seconds(ours),
    }
    ratios = compare(contenders, rounds=3, title=f"time to tokenize {count:,} texts")
    assert ratios["recipe"] < 1.1 * min(ratios.values())


def test_two_processes() -> None:
    """Goal: at least 0.97 times the throughput of plain DDP on a model whose time goes into computing."""
    times = run_module("tests.support.throughput_process", os.environ.get("GROWTH_UPDATES", "60"))
    base = times["plain DDP"]
    print("\nthroughput of two processes, GPT-2 of 4 layers (ratio of the median updates to 'plain DDP')")
    for name, seconds in times.items():
        print(f"  {name:<42} {base / seconds:6.3f}")
    assert base / times["recipe"] > 0.9


def write_plugins(folder: Path, count: int) -> None:
    """As many distributions, each with a recipe."""
    folder.mkdir()
    for number in range(count):
        about = folder / f"plugin_{number}-1.0.dist-info"
        about.mkdir()
        text = f"Metadata-Version: 2.1\nName: plugin_{number}\nVersion: 1.0\nRequires-Dist: taskrecipe\n\n"
        (about / "METADATA").write_text(text)
        (about / "entry_points.txt").write_text(f"[taskrecipe.recipes]\nr{number} = plugin_{number}:R\n")
        code = 'from taskrecipe import Recipe\n\n\nclass R(Recipe):\n    """A recipe."""\n'
        (folder / f"plugin_{number}.py").write_text(code)


def test_list(tmp_path: Path) -> None:
    """Goal: a thousand plugins are listed in a few times the time that none take."""
    counts = [0, 100, 1000]
    for count in counts:
        write_plugins(tmp_path / str(count), count)

    def list_with(count: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        recipe = Path(sys.executable).with_name("recipe")
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / str(count))}
        done = subprocess.run([recipe, "list"], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.count("A recipe.") == count
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    contenders = {f"{count} plugins": lambda count=count: list_with(count) for count in counts}
    ratios = compare(contenders, rounds=3, title="processor time of recipe list")
    assert ratios["1000 plugins"] < 6
