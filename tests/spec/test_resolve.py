"""The resolved spec: absolute paths, and the file it is kept as."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.specplugins import registry

from taskrecipe.spec.layers import Layers
from taskrecipe.spec.resolve import make_relative, resolve
from taskrecipe.spec.sources import Source
from taskrecipe.spec.validation import validate_layers

BUNDLED = sorted((Path(__file__).parents[2] / "specs").rglob("*.toml"))

WRAPPING = """\
spec_version = 1
recipe = "wrapping"
[task]
teacher = "teachers/one"
[task.inner]
recipe = "sorting"
task = { name = "red", words = "words.txt" }
[[task.more]]
recipe = "sorting"
task = { name = "red", words = "/abs/words.txt" }
[model]
name = "org/hub"
processor = "here"
[data]
files = { train = "a.csv", validation = ["b/*.csv", "../c.csv", "~/d.csv"] }
[train]
epochs = 1
learning_rate = 1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of specs, beside the working folder."""
    for name in ("specs", "specs/here", "specs/teachers/one", "work/org/hub"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", "/home/me")
    return tmp_path / "specs"


def test_paths_are_made_absolute_against_the_file_that_gives_them(folder):
    (folder / "spec.toml").write_text(WRAPPING)
    spec = resolve(folder / "spec.toml", registry=registry()).spec
    assert spec.data.files == {
        "train": f"{folder}/a.csv",
        "validation": [f"{folder}/b/*.csv", f"{folder}/../c.csv", "/home/me/d.csv"],
    }
    assert spec.task.inner.task.words == f"{folder}/words.txt"
    assert spec.task.more[0].task.words == "/abs/words.txt"


def test_a_hub_id_stays_one_unless_there_is_such_a_folder_beside_the_file(folder):
    (folder / "spec.toml").write_text(WRAPPING)
    spec = resolve(folder / "spec.toml", registry=registry()).spec
    assert spec.model.name == "org/hub"
    assert spec.model.processor == f"{folder}/here"
    assert spec.task.teacher == f"{folder}/teachers/one"


def test_paths_of_a_parent_and_of_set_have_their_own_folders(folder):
    (folder / "base.toml").write_text(WRAPPING)
    work = Path.cwd()
    Path("spec.toml").write_text(f'extends = "{folder}/base.toml"\ndata.files.train = "mine.csv"\n')
    spec = resolve(Path("spec.toml"), ["data.files.test=other.csv", "model.name=org/hub"], registry=registry()).spec
    assert spec.data.files["train"] == f"{work}/mine.csv"
    assert spec.data.files["test"] == f"{work}/other.csv"
    assert spec.data.files["validation"][0] == f"{folder}/b/*.csv"
    assert spec.model.name == f"{work}/org/hub"


def test_the_kept_file_says_where_each_value_came_from_and_resolves_to_the_same(folder):
    (folder / "spec.toml").write_text(WRAPPING)
    result = resolve(folder / "spec.toml", ["train.epochs=3"], sample=True, registry=registry())
    text = result.to_toml()
    assert text.startswith('spec_version = 1 # spec.toml:1\nrecipe = "wrapping" # spec.toml:2\n')
    assert "epochs = 3 # --set" in text
    assert "sample = true # sample" in text
    assert "accumulate = 1 # default" in text
    assert 'teacher = "teachers/one" # spec.toml:4' in text
    (folder / "kept.toml").write_text(text)
    assert resolve(folder / "kept.toml", registry=registry()).spec == result.spec
    assert str(folder) not in text


def test_paths_that_have_only_the_root_in_common_stay_absolute(tmp_path):
    assert make_relative("/elsewhere/train.csv", tmp_path) == "/elsewhere/train.csv"
    assert make_relative(str(tmp_path / "a" / "train.csv"), tmp_path / "specs") == "../a/train.csv"


def test_a_path_is_not_made_relative_across_a_link(tmp_path):
    (tmp_path / "deep" / "specs").mkdir(parents=True)
    (tmp_path / "specs").symlink_to(tmp_path / "deep" / "specs")
    data = str(tmp_path / "train.csv")
    assert make_relative(data, tmp_path / "specs") == data


texts = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=12)
counts = st.integers(1, 2**31 - 1)
numbers = st.floats(0.0, 1e9, allow_nan=False) | counts
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts


def some(**fields):
    return st.fixed_dictionaries({}, optional=fields)


choices = st.fixed_dictionaries(
    {"recipe": st.just("sorting")},
    optional={"task": st.fixed_dictionaries({"name": st.sampled_from(["red", "green"])}, optional={"words": texts})},
).map(lambda choice: {"task": {"name": "red"}, **choice})

specs = st.fixed_dictionaries(
    {
        "spec_version": st.just(1),
        "recipe": st.just("wrapping"),
        "task": st.fixed_dictionaries(
            {"inner": choices},
            optional={"more": st.lists(choices, max_size=2), "named": st.dictionaries(texts, choices, max_size=2)},
        ),
        "model": st.fixed_dictionaries(
            {"name": texts},
            optional={
                "processor": texts,
                "config": st.dictionaries(texts, scalars | st.lists(scalars, max_size=3), max_size=3),
            },
        ),
        "data": st.fixed_dictionaries({"path": texts}, optional={"columns": st.dictionaries(texts, texts, max_size=3)}),
        "train": st.fixed_dictionaries(
            {"epochs": counts, "learning_rate": st.floats(1e-300, 1e9)},
            optional={
                "clip_norm": numbers,
                "order": st.sampled_from(["shuffled", "sequential"]),
                "compile": st.booleans(),
            },
        ),
    },
    optional={
        "seed": st.integers(0, 2**31 - 1),
        "optimizer": some(weight_decay=st.floats(0.0, 10.0)),
        "schedule": some(warmup=st.integers(0, 100) | st.floats(0.0, 0.99)),
        "evaluate": some(every=st.sampled_from(["epoch", "end"]) | counts, best=st.just("loss")),
        "callbacks": st.lists(st.fixed_dictionaries({"name": st.just("bell")}, optional={"times": counts}), max_size=3),
        "track": st.fixed_dictionaries({"name": st.just("board")}, optional={"project": texts}),
    },
)


@settings(max_examples=60, deadline=None)
@given(specs)
def test_load_dump_load_is_stable(values):
    known = registry()
    first = _resolved(Source("a.toml", "", values, Path("/"), "file"), known).to_toml()
    again = _resolved(Source("b.toml", first, tomllib.loads(first), Path("/"), "file"), known)
    assert tomllib.loads(again.to_toml()) == tomllib.loads(first)
    assert again.to_toml(first) == first  # what is told of origins, too


def _resolved(source, known):
    from taskrecipe.spec.resolve import Origins, Resolved

    layers = Layers([source])
    return Resolved(validate_layers(layers, known), layers.values, Origins(layers), Path("x"))


@pytest.mark.parametrize("sample", [False, True], ids=["as it is", "with sample"])
@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_the_kept_file_of_every_bundled_spec_resolves_to_the_same(path, sample, tmp_path):
    result = resolve(path, sample=sample)
    kept = result.to_toml()
    (tmp_path / "spec.toml").write_text(kept)
    (tmp_path / "environment.json").write_text(json.dumps({"spec_folder": str(result.folder)}))
    again = resolve(tmp_path / "spec.toml")
    assert again.spec == result.spec
    assert again.to_toml(kept) == kept  # origins are those of the first time, however often a run is resumed


def test_origins_are_found_again_below_odd_ends_of_lines(tmp_path):
    kept = resolve(BUNDLED[0], ["data.columns.text='a\u2028b'"]).to_toml()
    (tmp_path / "spec.toml").write_text(kept)
    assert resolve(tmp_path / "spec.toml").to_toml(kept) == kept
