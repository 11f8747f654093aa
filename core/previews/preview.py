"""`preview`: rows as the model sees them, numbers about all rows, and advice, as one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.description import DescribedImage, Description
from taskrecipe.errors import UsageError
from taskrecipe.run.host import preserve_host
from taskrecipe.run.request import Settings, as_assignments
from taskrecipe.system.library_output import quiet_libraries

if TYPE_CHECKING:
    from taskrecipe.previews.examples import Example, UpdateBatches
    from taskrecipe.previews.material import Material
    from taskrecipe.previews.statistics import Statistics

SHOWN = 8
"""Rows that are shown unless the caller says how many."""


@dataclass
class Preview:
    """What goes into a model: examples, statistics, and advice."""

    title: str
    recipe: str
    data: str
    """Where the rows come from: the hub, files, or the recipe's sample."""
    order: str
    """The order of the training rows."""
    examples: list[Example]
    statistics: Statistics
    advice: list[str]
    update: UpdateBatches | None = None
    """The batches of the update, if one was asked for."""
    problem: str | None = None
    """Why nothing would be trained on; None if something would."""
    warnings: list[str] = field(default_factory=list)
    _material: Material | None = field(default=None, repr=False)

    @cached_property
    def digest(self) -> str | None:
        """The sha256 of the update's batches, if an update was asked for."""
        from taskrecipe.previews.digest import digest_batches

        return digest_batches(self.update.batches) if self.update else None

    @cached_property
    def colors(self) -> dict[str, str]:
        """The color of each label that is drawn on an image."""
        from taskrecipe.previews.image_files import class_colors

        images = [one.description for one in self.examples if isinstance(one.description, DescribedImage)]
        drawn = sorted({shape.label for image in images for shape in image.shapes})
        return class_colors([*(self._material.recipe.labels if self._material and drawn else ()), *drawn])

    def variants(self, example: Example) -> list[Description]:
        """Return a training row as it is in four epochs; nothing if it is the same in all of them."""
        from taskrecipe.previews.examples import describe_variants

        return describe_variants(self._material, example) if self._material else []

    def html(self) -> str:
        """Return everything as one page that needs no network."""
        from taskrecipe.previews.page import render_page

        with preserve_host():
            return render_page(self)

    def _repr_html_(self) -> str:
        """Show the page in a notebook, apart from the notebook's own styles."""
        from taskrecipe.previews.page import frame_page

        return frame_page(self.html())

    def to_json(self) -> dict[str, Any]:
        """Return everything but pixels as JSON values."""
        return {
            "title": self.title,
            "recipe": self.recipe,
            "data": self.data,
            "update": self.update and {"number": self.update.number, "epoch": self.update.epoch, "sha256": self.digest},
            "examples": [_example_to_json(example) for example in self.examples],
            "statistics": asdict(self.statistics),
            "advice": self.advice,
            "problem": self.problem,
            "warnings": self.warnings,
        }


def preview(
    spec: str | Path,
    *,
    n: int = SHOWN,
    update: int | None = None,
    rows: Sequence[int] | None = None,
    split: str = "train",
    set: Settings = (),
    sample: bool = False,
) -> Preview:
    """Show rows of a spec, or of a run by its folder, as the model sees them. No weights are loaded.

    By default `n` rows are shown, spread over the split; with `rows`, those by number; with `update`, those of that
    training update, counted from 1, exactly as training gets them. `set` and `sample` work as in `train`.
    """
    if update is not None and split != "train":
        raise UsageError("--update is of training: leave --split out")
    with preserve_host(), quiet_libraries("datasets"):
        return _make_preview(Path(spec), n, update, rows, split, as_assignments(set), sample)


def _make_preview(
    path: Path, n: int, update: int | None, rows: Sequence[int] | None, split: str, sets: Sequence[str], sample: bool
) -> Preview:
    from taskrecipe.previews.advice import give_advice
    from taskrecipe.previews.examples import find_items, find_update
    from taskrecipe.previews.material import load_material
    from taskrecipe.previews.statistics import collect_statistics

    material = load_material(path, sets, sample)
    batches = find_update(material, update or 1)
    statistics = collect_statistics(material, batches)
    return Preview(
        title=path.name,
        recipe=material.recipe.spec.recipe,
        data=material.loaded.origin,
        order=material.recipe.spec.train.order,
        examples=_choose_examples(material, batches if update else None, n, rows, split),
        statistics=statistics,
        advice=give_advice(material.recipe.spec, statistics),
        update=batches if update else None,
        problem=None if find_items(material, batches) else "no training row has anything left to predict",
        warnings=material.warnings,
        _material=material,
    )


def _choose_examples(
    material: Material, update: UpdateBatches | None, n: int, rows: Sequence[int] | None, split: str
) -> list[Example]:
    from taskrecipe.previews.examples import choose_rows, describe_rows

    if split not in material.rows:
        raise UsageError(f"there is no split {split!r}; there are {', '.join(material.rows)}")
    if update is None:
        return describe_rows(material, split, rows or choose_rows(len(material.rows[split]), n))
    if rows is None:
        return update.examples
    missing = [row for row in rows if row not in update.rows]
    if missing:
        raise UsageError(f"row {missing[0]} is not in update {update.number}")
    return [example for example in update.examples if example.row in rows]


def _example_to_json(example: Example) -> dict[str, Any]:
    described = example.description
    about = {"split": example.split, "row": example.row, "epoch": example.epoch, "source": example.source}
    if isinstance(described, DescribedImage):
        shapes = [
            {"label": shape.label, "box": shape.box, "mask": shape.mask is not None} for shape in described.shapes
        ]
        return {**about, "facts": described.facts, "size": list(described.image.size), "shapes": shapes}
    lines = [[asdict(piece) for piece in line] for line in described.lines]
    return {**about, "facts": described.facts, "names": described.names, "lines": lines}
