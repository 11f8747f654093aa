"""What is previewed is what is trained on: the same tensors, for every recipe."""

from __future__ import annotations

import copy
import warnings
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from accelerate import Accelerator

from taskrecipe import Run, UsageError, preview, train
from taskrecipe.previews.digest import digest_batches
from taskrecipe.previews.examples import find_update
from taskrecipe.previews.material import load_material
from taskrecipe.run.prepare import prepare_run
from taskrecipe.spec.resolve import resolve
from taskrecipe.training.setup import make_loop
from taskrecipe.training.update import Update

SPECS = Path(__file__).parents[2] / "specs"
RECIPES = ["mrpc", "clm", "mlm", "swag", "mim", "detection"] + [
    f"contrib/{name}"
    for name in (
        "image_classification",
        "instance_segmentation",
        "multitask",
        "question_answering",
        "semantic_segmentation",
        "seq2seq",
        "token_classification",
        "two_tower",
    )
]
SHOWN = (1, 3)
"""Updates that are compared, counted from 1."""


def trained_digests(spec: Path, folder: Path, splits: list[tuple[int, int]]) -> dict[tuple[int, int], list[str]]:
    """The digests of the batches that the loop gets, for each way of accumulating and number of workers."""
    prepared = prepare_run(resolve(spec, sample=True).spec, Accelerator(cpu=True), folder / "sample")
    found = {}
    for accumulate, workers in splits:
        recipe = copy.copy(prepared.recipe)
        recipe.spec = with_split(recipe.spec, accumulate, workers)
        loop = make_loop(recipe, prepared.module, prepared.rows, Accelerator(cpu=True))
        with closing(loop.state.updates(0)) as updates:
            taken = list(islice(updates, max(SHOWN)))
        found[accumulate, workers] = [digest_batches(taken[number - 1].batches) for number in SHOWN]
    return found


def with_split(spec, accumulate: int, workers: int):
    values = {
        "train": spec.train.model_copy(update={"accumulate": accumulate}),
        "data": spec.data.model_copy(update={"workers": workers}),
    }
    return spec.model_copy(update=values)


@pytest.mark.parametrize("name", RECIPES)
def test_an_update_is_shown_as_it_is_trained_on(name: str, tmp_path: Path) -> None:
    spec = SPECS / f"{name}.toml"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        ways = [(1, 0), (1, 2), (2, 0), (2, 2)] if name in ("mrpc", "mlm") else [(1, 0), (2, 2)]
        trained = trained_digests(spec, tmp_path, ways)
        material = load_material(spec, [], sample=True)
        given = material.recipe.spec
        for (accumulate, workers), digests in trained.items():
            material.recipe.spec = with_split(given, accumulate, workers)
            shown = [find_update(material, number) for number in SHOWN]
            assert [digest_batches(update.batches) for update in shown] == digests
            rows = [example.row for example in shown[0].examples]
            assert rows == list(shown[0].rows)


def test_a_real_run_trains_on_what_the_preview_of_its_folder_shows(tmp_path: Path, monkeypatch) -> None:
    trained: list[str] = []
    compute = Update.compute_gradients
    monkeypatch.setattr(
        Update, "compute_gradients", lambda self: (trained.append(digest_batches(self.batches)), compute(self))
    )
    settings = {"train.updates": 3, "train.accumulate": 2}
    run: Run = train(SPECS / "mrpc.toml", sample=True, set=settings, out=tmp_path / "run", quiet=True)
    assert [preview(run.folder, update=number).digest for number in (1, 2, 3)] == trained
    assert preview(SPECS / "mrpc.toml", sample=True, set=settings, update=2).digest == trained[1]


def test_updates_of_a_stream_are_those_that_training_reads(tmp_path: Path) -> None:
    lines = [f'{{"text": "{" ".join(str(n * 7 % 10) for n in range(i % 9 + 3))}"}}' for i in range(2500)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    (tmp_path / "validation.jsonl").write_text("\n".join(lines[:50]))
    spec = tmp_path / "stream.toml"
    spec.write_text(
        'spec_version = 1\nrecipe = "clm"\n[task]\nlength = 16\nsize = "tiny"\nrows = "documents"\n'
        "[task.tokenizer]\nvocab_size = 300\n"
        '[model]\ntype = "gpt2"\n[data]\nstreaming = true\n[data.files]\ntrain = "train.jsonl"\n'
        'validation = "validation.jsonl"\n[train]\nupdates = 20\nbatch_size = 64\n'
        "accumulate = 2\nlearning_rate = 1e-3\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        prepared = prepare_run(resolve(spec).spec, Accelerator(cpu=True), tmp_path / "sample")
        loop = make_loop(prepared.recipe, prepared.module, prepared.rows, Accelerator(cpu=True))
        trained = [digest_batches(update.batches) for update in loop.state.updates(0)]
        shown = preview(spec, update=18)
    assert shown.digest == trained[17]
    assert len({*trained}) == 20
    far = shown.examples[0]
    (by_number,) = preview(spec, rows=[far.row]).examples
    assert by_number.description.lines[0] == [p for p in far.description.lines[0] if p.role != "padding"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update": 129}, "the run has updates 1 to 128"),
        ({"rows": [512]}, "split 'train' has rows 0 to 511"),
        ({"split": "tset"}, "there is no split 'tset'; there are train, validation"),
        ({"update": 1, "split": "validation"}, "leave --split out"),
    ],
)
def test_what_is_not_there_is_refused(options, message) -> None:
    with pytest.raises(UsageError, match=message):
        preview(SPECS / "mrpc.toml", sample=True, **options)
