"""Evidence files: what an evaluation has found about each row, for people and for programs to look at.

predictions/<split>.parquet             one line a row: input, reference, prediction, correct or not, loss, scores
predictions/<split>.bootstrap.parquet   the metrics on each resample of the rows
predictions/<split>.coco.json           what was found in images, as COCO's tools read it
predictions/held_out.json               the training rows that [data].holdout has set aside
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe.data.places import Place
from taskrecipe.errors import DataError
from taskrecipe.recipe import target_columns
from taskrecipe.system import atomic_files
from taskrecipe.use.assessment import Assessment, Numbers
from taskrecipe.use.scores import merge_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

FORMAT = 1
HELD_OUT = "held_out.json"

MOST_TEXT = 2000
"""Characters that are kept of a text of the input."""
MOST_ITEMS = 1000
"""Items that are kept of a list of the input."""
MOST_BYTES = 256 * 2**20
"""About how large the answers and references of all rows may be together; if they are larger, fewer rows are kept."""
PROBED_ROWS = 32
"""Rows that the size is estimated from."""

THUMBNAIL_SIDE, WORST_ROWS, RANDOM_ROWS = 256, 60, 40
"""Images that are kept small: of how many of the worst rows and of how many others."""

_KEPT, _SHOWN = 0x6B657074, 0x73686F77
"""Keep the draws of rows apart from all others."""


@dataclass(frozen=True)
class Evidence:
    """An assessed split with the data that its rows come from, ready to be written down."""

    assessment: Assessment
    raw: Dataset | None
    """The rows before preprocessing; None if they are not stored."""
    place: Place
    folder: Path
    """What the names of files are relative to."""
    limit: int
    """Most rows that are kept."""
    about: Mapping[str, Any]
    """What the file says about itself besides what is known here: `run`, `step`, `data`."""

    def write(self, target: Path) -> list[Path]:
        """Write the files of this split into the folder `target`, and return them."""
        import pyarrow as pa

        target.mkdir(exist_ok=True, parents=True)
        name = self.assessment.split.replace("/", "-")
        rows, resamples = target / f"{name}.parquet", target / f"{name}.bootstrap.parquet"
        _write_table(rows, self.make_table())
        _write_table(resamples, pa.table(dict(self.assessment.resampled)))
        return [rows, resamples, *self._write_objects(target / f"{name}.coco.json")]

    def make_table(self) -> pa.Table:
        """Return one line for each row that is kept, in their order."""
        import pyarrow as pa

        kept = self._choose_rows()
        columns = self._judge(kept)
        columns["thumbnail"] = self._draw_thumbnails(kept, columns)
        scores = {f"score.{name}": values[kept] for name, values in self.assessment.row_scores.items()}
        arrays = {name: pa.array(columns[name], type=kind) for name, kind in _types().items()}
        arrays |= {name: pa.array(values, pa.float64(), from_pandas=True) for name, values in scores.items()}
        return pa.table(arrays).replace_schema_metadata({"taskrecipe": _to_json(self._describe(len(kept)))})

    def _describe(self, kept: int) -> dict[str, Any]:
        assessment, recipe = self.assessment, self.assessment.recipe
        return {
            "format": FORMAT,
            **self.about,
            "split": assessment.split,
            "recipe": recipe.spec.recipe,
            "labels": recipe.labels,
            "metrics": assessment.metrics,
            "directions": {**recipe.metrics(), "loss": "min"},
            "rows": assessment.size,
            "kept": kept,
        }

    def _choose_rows(self) -> Numbers:
        """Choose the rows to keep. It depends only on how many there are, and on how large their answers are."""
        size = self.assessment.size
        some = _draw_rows(size, min(PROBED_ROWS, self.limit), _KEPT)
        probed = self._judge(some)
        written = sum(len(text or "") for name in ("prediction", "reference") for text in probed[name])
        affordable = MOST_BYTES * max(len(some), 1) // max(written, 1)
        return _draw_rows(size, min(self.limit, affordable), _KEPT)

    def _judge(self, kept: Numbers) -> dict[str, list[Any]]:
        """Return what is said about each of these rows, as columns."""
        recipe, found = self.assessment.recipe, self.assessment.outcome.predictions
        columns: dict[str, list[Any]] = {name: [] for name in _types()}
        merged = merge_rows(recipe, found, self.assessment.rows, set(kept.tolist()))
        for number, (prediction, row) in zip(kept.tolist(), merged, strict=True):
            judged = recipe.judge(prediction, row)
            loss = self.assessment.row_losses[number] if judged.loss is None else judged.loss
            columns["row"].append(number)
            columns["input"].append(None if self.assessment.is_aligned else _to_json(self._decode_input(row)))
            columns["reference"].append(None if judged.reference is None else _to_json(judged.reference))
            columns["prediction"].append(_to_json(recipe.answer(prediction, row)))
            columns["confidence"].append(judged.confidence)
            columns["loss"].append(float(loss) if math.isfinite(loss) else None)
            columns["correct"].append(judged.correct)
        columns["source"] = self._find_sources(kept)
        if self.assessment.is_aligned:
            columns["input"] = [_to_json(row) for row in self._read_inputs(kept)]
        return columns

    def _decode_input(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the text of a row that is not made of one row of the data."""
        processor = self.assessment.recipe.processor
        text = processor.decode(row["input_ids"]) if "input_ids" in row and hasattr(processor, "decode") else None
        return {"text": _shorten(text)}

    def _read_inputs(self, kept: Numbers) -> Iterable[dict[str, Any]]:
        """Yield the columns of each row that are no targets."""
        if self.raw is None:
            return ({} for _ in kept)
        targets = target_columns(self.assessment.recipe)
        raw = _as_encoded(self.raw.remove_columns([name for name in targets if name in self.raw.column_names]))
        return ({name: _shorten(value) for name, value in row.items()} for row in raw.select(kept))

    def _find_sources(self, kept: Numbers) -> list[str | None]:
        try:
            found = self.place.sources(self.folder) if self.assessment.is_aligned else []
        except (DataError, OSError, ValueError):  # a file that has changed meanwhile
            found = []
        return [found[number] if number < len(found) else None for number in kept.tolist()]

    def _draw_thumbnails(self, kept: Numbers, columns: Mapping[str, list[Any]]) -> list[bytes | None]:
        """Return small images of the worst rows and of some others."""
        if self.raw is None or not self.assessment.is_aligned or "image" not in _image_names(self.raw):
            return [None] * len(kept)
        shown = {*_find_worst(columns)[:WORST_ROWS], *_draw_rows(len(kept), RANDOM_ROWS, _SHOWN).tolist()}
        images = _as_encoded(self.raw.select_columns(["image"]))
        return [_shrink(images[int(kept[i])]["image"]) if i in shown else None for i in range(len(kept))]

    def _write_objects(self, path: Path) -> list[Path]:
        from taskrecipe.vision.object_recipe import ObjectRecipe

        recipe = self.assessment.recipe
        if not isinstance(recipe, ObjectRecipe) or self.assessment.size > self.limit:
            return []
        ids = self.raw["image_id"] if self.raw is not None and "image_id" in self.raw.column_names else None
        found = recipe.coco_results(self.assessment.outcome.predictions, ids, self._find_class_ids())
        atomic_files.replace(path, json.dumps(found).encode())
        return [path]

    def _find_class_ids(self) -> dict[str, int]:
        """Return the ids of classes in the COCO file of this split, if it is one."""
        from taskrecipe.data.coco import read_category_ids
        from taskrecipe.data.files import find_files

        recipe, split = self.assessment.recipe, self.assessment.split
        data = recipe.spec.data
        names = [split, data.splits.get(split), recipe.splits().get(split)]
        given = next((data.files[name] for name in names if name in data.files), None)
        return read_category_ids(find_files(split, given)) if given else {}


def read_about(target: Path, split: str) -> dict[str, Any] | None:
    """Return what the evidence about a split says about itself; None if there is none that can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(target / f"{split.replace('/', '-')}.parquet").metadata or {}
        return dict(json.loads(metadata[b"taskrecipe"]))
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return None


def write_held_out(held_out: Mapping[str, Sequence[int]], target: Path) -> None:
    """Write which training rows of the data make up each split that was held out."""
    if held_out:
        target.mkdir(exist_ok=True, parents=True)
        atomic_files.replace(target / HELD_OUT, json.dumps(dict(held_out)).encode())


def _types() -> dict[str, Any]:
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    return {
        "row": pa.int64(),
        "source": text,
        "input": text,
        "thumbnail": pa.binary(),
        "reference": text,
        "prediction": text,
        "confidence": number,
        "loss": number,
        "correct": pa.bool_(),
    }


def _draw_rows(size: int, count: int, purpose: int) -> Numbers:
    """Return `count` of the row numbers, in order: all of them if there are no more."""
    if size <= count:
        return np.arange(size)
    return np.sort(np.random.default_rng([purpose, size]).permutation(size)[:count])


def _find_worst(columns: Mapping[str, list[Any]]) -> list[int]:
    """Return the places of rows, the worst first: those with the highest loss, or those that are not correct."""
    badness = [
        (correct is False) if loss is None else loss
        for loss, correct in zip(columns["loss"], columns["correct"], strict=True)
    ]
    return sorted(range(len(badness)), key=lambda place: -badness[place])


def _write_table(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    atomic_files.replace(path, buffer.getvalue())


def _image_names(rows: Dataset) -> list[str]:
    from taskrecipe.data.row_digest import image_columns

    return image_columns(rows)


def _as_encoded(rows: Dataset) -> Dataset:
    """Return the rows with images that are not decoded."""
    from taskrecipe.data.images import keep_encoded

    for name in _image_names(rows):
        rows = keep_encoded(rows, name)
    return rows


def _shrink(image: Any) -> bytes | None:
    from PIL import Image

    from taskrecipe.data.images import open_rgb

    try:
        small = open_rgb(image)[0]
    except (DataError, OSError):  # a file that has changed meanwhile
        return None
    # Boxes are in pixels of the whole image, so a reader must know its size.
    size = f"{small.width}x{small.height}"
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=85, comment=size)
    return buffer.getvalue()


def _shorten(value: Any) -> Any:
    """Return a value of the data as JSON values of limited length. Of an image, only its path is kept."""
    if isinstance(value, str):
        return value[:MOST_TEXT]
    if isinstance(value, (list, tuple)):
        return [_shorten(item) for item in value[:MOST_ITEMS]]
    if isinstance(value, dict):
        if value.keys() == {"bytes", "path"}:
            return Path(value["path"]).name if value["path"] else None
        return {str(name): _shorten(item) for name, item in value.items()}
    if isinstance(value, bytes):
        return None
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _to_json(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """Replace numbers that JSON doesn't have by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
