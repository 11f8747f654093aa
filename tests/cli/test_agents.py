"""A program writes, repairs, previews, runs, judges and uses a spec by the commands' JSON alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.commands import Zygote
from tests.support.runs import write_task

WRONG = """\
spec_version = 1
recipe = "gleu"
seed = 3
[task]
name = "mrpc"
[model]
name = "model"
[data.files]
train = "train.csv"
validation = "validation.csv"
[train]
updates = 6
batch_size = 8
learning_rat = 1e-3
[evaluate]
every = 3
best = "f2"
"""


class Agent:
    """Knows nothing but what commands print as JSON."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self.zygote, self.folder = zygote, folder

    def ask(self, *words: str, code: int = 0) -> Any:
        done = self.zygote.run(*words, "--json", cwd=self.folder)
        assert done.code == code, done.stderr
        return json.loads(done.stdout)

    def repair(self, spec: Path) -> list[str]:
        """Apply suggestions until the spec is valid; return the codes of the problems that were there."""
        codes = []
        for _ in range(5):
            problems = self.ask("validate", spec.name, code=2 if self.is_wrong(spec) else 0)
            if not problems:
                return codes
            lines = spec.read_text().splitlines()
            for problem in problems:
                codes.append(problem["code"])
                lines[problem["line"] - 1] = self.change(lines[problem["line"] - 1], problem)
            spec.write_text("\n".join(lines) + "\n")
        raise AssertionError("the spec could not be repaired")

    def is_wrong(self, spec: Path) -> bool:
        return self.zygote.run("validate", spec.name, cwd=self.folder).code == 2

    def change(self, line: str, problem: dict[str, Any]) -> str:
        key, _, value = line.partition(" = ")
        suggestion = problem["suggestion"]
        if problem["code"] == "unknown-metric" and suggestion is None:
            known = self.ask("show", "glue")["tasks"]["mrpc"]["metrics"]
            return f'{key} = "{next(iter(known))}"'
        if problem["code"].startswith("unknown-key"):
            return f"{suggestion} = {value}"
        return f'{key} = "{suggestion}"'


def test_from_a_wrong_spec_to_a_verdict(zygote: Zygote, tmp_path: Path) -> None:
    write_task(tmp_path, rows=40)
    agent, spec = Agent(zygote, tmp_path), tmp_path / "spec.toml"
    spec.write_text(WRONG)

    assert {"unknown-recipe", "unknown-key", "unknown-metric"} <= set(agent.repair(spec))

    seen = agent.ask("preview", "spec.toml", "-n", "1")
    assert seen["problem"] is None
    assert seen["statistics"]["splits"]["train"]["rows"] == 40

    for name, rate in (("first", "1e-3"), ("second", "1e-5")):
        words = ["run", "spec.toml", "--out", name, "--set", f"train.learning_rate={rate}", "--json"]
        done = zygote.run(*words, cwd=tmp_path)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert [event["status"] for event in events if event["event"] == "end"] == ["finished"]

    measured = agent.ask("evaluate", "first")
    assert measured["equal_to_log"]
    compared = agent.ask("compare", "first", "second")
    assert [difference["key"] for difference in compared["spec"]] == ["train.learning_rate"]
    verdicts = {metric["verdict"] for metric in compared["comparisons"][0]["metrics"]}
    assert verdicts <= {"better", "worse", "no clear difference"}
    (tmp_path / "rows.jsonl").write_text('{"sentence1": "the sailor waits", "sentence2": "a sailor works"}\n')
    assert agent.ask("predict", "first", "rows.jsonl", "-o", "answers.jsonl")["left_out"] == 0


def test_a_run_that_fails_says_why_in_json(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(WRONG.replace("gleu", "glue").replace("rat =", "rate =").replace("f2", "f1"))
    refused = zygote.run("run", "spec.toml", "--json", cwd=tmp_path)
    error = json.loads(refused.stderr.splitlines()[-1])["error"]
    assert (refused.code, error["exit_code"], error["code"]) == (3, 3, "data")
    assert error["help"] == "recipe guide data"
