"""The page about one's own recipe shows the files that `recipe new-plugin` writes, and signatures as they are.

`python tests/test_own_recipe_page.py` writes both into it.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import taskrecipe
from taskrecipe.cli.new_plugin import package_files

PAGE = Path(__file__).parents[1] / "core" / "cli" / "pages" / "own_recipe.md"
FILE = re.compile(r"^```(python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLASS = re.compile(r"^```python\nclass (\w+):\n((?:    .*\n)+)```$", re.MULTILINE)
MEMBER = re.compile(r"^    (?:def )?(\w+)", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)`", re.MULTILINE)

WRITTEN = ["recipe_headlines.py", "pyproject.toml", "tests/test_headlines.py", "headlines.toml"]
EXAMPLES = ["recipe_circle.py", "recipe_z_loss.py"]
IN_PART = {"ModelSource", "Control"}
"""Classes of which the page shows only what a plugin uses."""


def write_page(text: str) -> str:
    """Return the page with the files and signatures of today."""
    files = package_files("headlines")

    def show_file(found: re.Match[str]) -> str:
        kind, name, _ = found.groups()
        return f"```{kind}\n# {name}\n{files[name].rstrip()}\n```" if name in files else found[0]

    def show_class(found: re.Match[str]) -> str:
        members = class_members(found[1])
        lines = [members[name] for name in MEMBER.findall(found[2])]
        return "\n".join(["```python", f"class {found[1]}:", *lines, "```"])

    return CLASS.sub(show_class, FILE.sub(show_file, text))


def class_members(name: str) -> dict[str, str]:
    """Return a line for each public member of a class of the door, as its source declares it."""
    [definition] = ast.parse(inspect.getsource(getattr(taskrecipe, name))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and (node.name == "__call__" or not node.name.startswith("_")):
            found[node.name] = show_function(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = show_variable(node, node.target.id)
    return found


def show_function(node: ast.FunctionDef) -> str:
    returned = show_type(node.returns)
    if "property" in {ast.unparse(mark) for mark in node.decorator_list}:
        return f"    {node.name}: {returned}  # a property"
    return f"    def {node.name}({show_type(node.args)}) -> {returned}: ..."


def show_variable(node: ast.AnnAssign, name: str) -> str:
    line = f"    {name}: {show_type(node.annotation)}"
    if node.value is None or isinstance(node.value, ast.Call):
        return line
    return f"{line} = {ast.unparse(node.value).replace(chr(39), chr(34))}"


def show_type(node: ast.AST | None) -> str:
    """Return annotations as they read without the quotes of forward references."""
    assert node is not None
    return ast.unparse(node).replace("'", "")


def shown_members() -> dict[str, list[str]]:
    shown: dict[str, list[str]] = {}
    for name, lines in CLASS.findall(PAGE.read_text()):
        shown.setdefault(name, []).extend(MEMBER.findall(lines))
    return shown


def test_the_page_shows_the_files_as_they_are_written() -> None:
    names = [name for _, name, _ in FILE.findall(PAGE.read_text())]
    assert names[: len(WRITTEN)] == WRITTEN
    assert names[len(WRITTEN) :] == EXAMPLES
    assert write_page(PAGE.read_text()) == PAGE.read_text(), "run: make readme"


def test_signatures_are_those_of_the_contract() -> None:
    for name, lines in CLASS.findall(PAGE.read_text()):
        for member in MEMBER.findall(lines):
            value = inspect.getattr_static(getattr(taskrecipe, name), member, None)
            if inspect.isfunction(value):
                shown = re.search(rf"^    def {member}\((.*)\) -> ", lines, re.MULTILINE)
                assert shown
                tree = ast.parse(f"def f({shown[1]}): ...").body[0]
                assert isinstance(tree, ast.FunctionDef)
                given = [*tree.args.args, *tree.args.kwonlyargs, *([tree.args.kwarg] if tree.args.kwarg else [])]
                assert [argument.arg for argument in given] == list(inspect.signature(value).parameters)


def test_the_page_shows_every_member_of_every_class() -> None:
    shown = shown_members()
    optional = {
        "HasParts",
        "CutsRows",
        "DrawsRows",
        "EmbedsRows",
        "SummarizesMetrics",
        "WeighsTerms",
        "ComputesUpdate",
    }
    kinds = {"Technique", "Effect", "Optimizer", "Schedule", "MetricLrFactor", "Callback", "Listener", "Tracker"}
    described = {"Recipe", "Judgment", "DescribedText", "DescribedImage", "Piece", "Shape"}
    assert described | optional | kinds | IN_PART == set(shown)
    for name, members in shown.items():
        assert len(members) == len(set(members))
        if name not in IN_PART:
            assert set(members) == set(class_members(name)), name


def test_tables_explain_every_member_of_recipes_and_techniques() -> None:
    contract, _, rest = PAGE.read_text().partition("\n## A recipe without transformers")
    techniques = rest.partition("\n## Techniques")[2].partition("\n## The other kinds")[0]
    assert sorted(ROW.findall(contract.partition("\n## The contract")[2])) == sorted(class_members("Recipe"))
    explained = [*class_members("Technique"), *class_members("Effect")]
    assert ROW.findall(techniques) == explained


def test_the_examples_pass_the_conformance_kit(tmp_path: Path) -> None:
    from tests.support.distributions import install  # not found when this file is run as a script

    blocks = {name: code for _, name, code in FILE.findall(PAGE.read_text())}
    entry_points = {"recipes": {"circle": "recipe_circle:Circle"}, "techniques": {"z_loss": "recipe_z_loss:ZLoss"}}
    install(tmp_path, "examples", entry_points, {name.removesuffix(".py"): blocks[name] for name in EXAMPLES})
    (tmp_path / "test_examples.py").write_text(
        "from taskrecipe.testing import conformance, technique_conformance\n"
        'test_circle = conformance("circle")\ntest_z_loss = technique_conformance("z_loss")\n'
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_examples.py"]
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "30 passed" in done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_import_from_doors_only(name: str) -> None:
    [code] = [code for _, found, code in FILE.findall(PAGE.read_text()) if found == name]
    modules = {line.split()[1] for line in code.splitlines() if line.strip().startswith("from taskrecipe")}
    assert modules <= {"taskrecipe", "taskrecipe.data", "taskrecipe.text", "taskrecipe.vision"}


if __name__ == "__main__":
    PAGE.write_text(write_page(PAGE.read_text()))
