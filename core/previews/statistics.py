"""Numbers about all rows of a spec: counts, lengths, classes, duplicates, and what is suspicious."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset, Image
from numpy.typing import NDArray

from taskrecipe.data.images import image_size, keep_encoded
from taskrecipe.data.load import parts_of
from taskrecipe.data.row_hash import Hashes, hash_rows
from taskrecipe.errors import DataError
from taskrecipe.previews.examples import UpdateBatches, choose_rows
from taskrecipe.previews.lengths import (
    Lengths,
    OrderKind,
    Padding,
    measure_padding,
    measure_texts,
    needed_lengths,
)
from taskrecipe.previews.material import Material
from taskrecipe.recipe import target_columns
from taskrecipe.training.setup import count_updates, make_order

LISTED_ROWS = 20
"""Suspicious rows of a kind whose numbers are listed."""

MEASURED_IMAGES = 512
"""Images of a split whose size is read."""

LONG_FACTOR, LONG_CHARACTERS = 20, 2000
"""A text is unusually long if it is this many times as long as the median, and has at least this many characters."""


@dataclass(frozen=True)
class Limit:
    """What one option cuts off in a split."""

    value: int
    cut: int
    """Rows that lose something."""
    share: float
    lost: float
    """Share of all tokens that are lost."""
    levels: dict[int, float]
    """The shortest lengths that cut no row, at most 1 % and at most 5 % of the rows, each with the share it cuts."""


@dataclass(frozen=True)
class Odd:
    """How many records are odd in one way, and the numbers of the first ones."""

    count: int
    rows: list[int]


@dataclass(frozen=True)
class SplitStatistics:
    """Numbers about the rows of one split."""

    rows: int
    records: int
    """Rows as they were read. Recipes may make several rows of one, or one of several."""
    classes: dict[str, int] = field(default_factory=dict)
    lengths: Lengths | None = None
    limits: dict[str, Limit] = field(default_factory=dict)
    unknown: float | None = None
    """Share of tokens that the tokenizer doesn't know."""
    duplicates: int = 0
    """Rows whose input was there before."""
    contradictions: int = 0
    """Inputs that occur with different targets."""
    also_in_train: int = 0
    suspicious: dict[str, Odd] = field(default_factory=dict)
    """What is odd about some records."""
    image_sizes: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Statistics:
    """Numbers about all rows."""

    splits: dict[str, SplitStatistics]
    padding: dict[OrderKind, Padding] = field(default_factory=dict)
    """What each order of the training rows costs in an epoch."""
    items: dict[str, float] = field(default_factory=dict)
    """How many items each loss term counts in the update."""
    update: int = 1
    """The update that items are counted in."""
    updates: int = 0
    updates_per_epoch: int | None = None


def collect_statistics(material: Material, update: UpdateBatches) -> Statistics:
    """Compute all numbers. Of a stream, the first block stands for the split."""
    spec = material.recipe.spec
    per_epoch = (
        None if material.stream is not None else make_order(material.recipe, material.rows["train"]).updates_per_epoch
    )
    return Statistics(
        splits=_collect_splits(material),
        padding=_measure_orders(material),
        items=_sum_counts(update),
        update=update.number,
        updates=count_updates(spec, per_epoch) if per_epoch else spec.train.updates or 0,
        updates_per_epoch=per_epoch,
    )


def _sum_counts(update: UpdateBatches) -> dict[str, float]:
    return {name: sum(batch.counts[name] for batch in update.batches) for name in update.batches[0].counts}


def _measure_orders(material: Material) -> dict[OrderKind, Padding]:
    if material.stream is not None:
        return {}
    rows, spec = material.rows["train"], material.recipe.spec
    lengths = material.recipe.lengths(rows)
    columns = measure_texts(rows)
    if lengths is None or not columns:
        return {}
    parts = spec.train.first_accumulate * spec.launch.processes
    return dict(measure_padding(make_order(material.recipe, rows), parts, columns, lengths))


# Splits ---------------------------------------------------------------------------------------------------


def _collect_splits(material: Material) -> dict[str, SplitStatistics]:
    recipe = material.recipe
    hashes = {split: _hash_split(material, rows) for split, rows in material.raw.items()}
    found = {}
    for split, rows in material.rows.items():
        raw, lengths = material.raw[split], recipe.lengths(rows)
        inputs, pairs = hashes[split]
        found[split] = SplitStatistics(
            rows=len(rows),
            records=len(raw),
            classes=recipe.count_classes(rows),
            lengths=Lengths.of(lengths) if lengths is not None and len(lengths) else None,
            limits=_measure_limits(material, split),
            unknown=_measure_unknown(rows, recipe.processor),
            duplicates=len(inputs) - len(np.unique(inputs)),
            contradictions=_count_contradictions(inputs, pairs),
            also_in_train=0 if split == "train" else int(np.isin(inputs, hashes["train"][0]).sum()),
            suspicious=_find_suspicious(raw),
            image_sizes=_measure_images(rows),
            facts=recipe.facts(rows, split),
        )
    return found


def _measure_limits(material: Material, split: str) -> dict[str, Limit]:
    if split not in material.uncut:
        return {}
    limits = {}
    for key, ending in material.recipe.length_options.items():
        needed = needed_lengths(material.uncut[split], ending)
        if needed is not None and len(needed):
            limits[key] = _measure_limit(needed, int(getattr(material.recipe.options, key)))
    return limits


def _measure_limit(needed: NDArray[np.int64], value: int) -> Limit:
    lengths = [int(np.quantile(needed, share, method="higher")) for share in (1.0, 0.99, 0.95)]
    levels = {length: float((needed > length).mean()) for length in lengths}
    lost = int(np.maximum(needed - value, 0).sum()) / max(int(needed.sum()), 1)
    cut = int((needed > value).sum())
    return Limit(value, cut, cut / len(needed), lost, levels)


def _measure_unknown(rows: Dataset, tokenizer: Any) -> float | None:
    """Return the share of tokens that the tokenizer doesn't know; None where it knows everything, or there are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unknown = getattr(tokenizer, "unk_token_id", None)
    names = [name for name in rows.column_names if name.endswith("input_ids")]
    if unknown is None or not names:
        return None
    total = found = 0
    for name in names:
        ids = rows.select_columns(name).with_format("arrow")[:][name]
        while pa.types.is_nested(ids.type):
            ids = pc.list_flatten(ids)
        total += len(ids)
        found += int(pc.sum(pc.equal(ids, unknown)).as_py() or 0)
    return found / total if total else None


# Duplicates -----------------------------------------------------------------------------------------------


def _hash_split(material: Material, rows: Dataset) -> tuple[Hashes, Hashes]:
    """Return a hash of each record's inputs, and one of its inputs and targets."""
    recipe = material.recipe
    declared = set(recipe.columns()) if not parts_of(recipe) else set(rows.column_names)
    shared = set.intersection(*(set(other.column_names) for other in material.raw.values()))
    targets = [name for name in target_columns(recipe) if name in rows.column_names]
    inputs = [name for name in rows.column_names if name in declared & shared and name not in targets]
    if not inputs:
        return np.arange(len(rows), dtype=np.uint64), np.arange(len(rows), dtype=np.uint64)
    encoded = _keep_images_encoded(rows.select_columns([*inputs, *targets]))
    own = hash_rows(encoded, inputs)
    return own, hash_rows(encoded, [*inputs, *targets]) if targets else own


def _count_contradictions(inputs: Hashes, pairs: Hashes) -> int:
    """Count the inputs that occur with more than one target."""
    together = np.unique(np.stack([inputs, pairs]), axis=1)[0]
    _, counts = np.unique(together, return_counts=True)
    return int((counts > 1).sum())


def _keep_images_encoded(rows: Dataset) -> Dataset:
    for name, feature in rows.features.items():
        if isinstance(feature, Image):
            rows = keep_encoded(rows, name)
    return rows


# What is odd ----------------------------------------------------------------------------------------------


def _find_suspicious(rows: Dataset) -> dict[str, Odd]:
    """Return what is odd about texts, and in which records."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, Odd] = {}
    for name, feature in rows.features.items():
        if getattr(feature, "dtype", None) not in ("string", "large_string"):
            continue
        texts = pc.fill_null(rows.select_columns(name).with_format("arrow")[:][name].cast(pa.large_string()), "")
        lengths = pc.utf8_length(texts).to_numpy()
        median = float(np.median(lengths)) if len(lengths) else 0.0
        odd: Mapping[str, Any] = {
            "is blank": pc.utf8_length(pc.utf8_trim_whitespace(texts)).to_numpy() == 0,
            "has a replacement character, as after a wrong encoding": pc.match_substring(texts, "\ufffd").to_numpy(),
            f"has more than {LONG_FACTOR} times the usual characters": lengths
            > max(LONG_FACTOR * median, LONG_CHARACTERS),
        }
        found |= {f"{name} {what}": _list_odd(np.asarray(mask)) for what, mask in odd.items() if np.any(mask)}
    return found


def _list_odd(mask: NDArray[np.bool_]) -> Odd:
    return Odd(int(mask.sum()), np.flatnonzero(mask)[:LISTED_ROWS].tolist())


def _measure_images(rows: Dataset) -> dict[str, str]:
    """Return widths and heights of images, of some of them where there are many."""
    if {"width", "height"} <= set(rows.column_names):
        table = rows.select_columns(["width", "height"]).with_format("arrow")[:]
        return _describe_sizes(table["width"].to_numpy(), table["height"].to_numpy())
    if "image" not in rows.column_names or not isinstance(rows.features["image"], Image):
        return {}
    chosen = rows.select_columns("image").select(choose_rows(len(rows), MEASURED_IMAGES))
    try:
        sizes = np.array([image_size(row["image"]) for row in keep_encoded(chosen)])
    except DataError:  # the recipe decides what to do with images that can't be read
        return {}
    return _describe_sizes(sizes[:, 0], sizes[:, 1])


def _describe_sizes(widths: Any, heights: Any) -> dict[str, str]:
    def quantiles(values: Any) -> str:
        low, middle, high = np.quantile(values, [0.0, 0.5, 1.0], method="nearest").astype(int).tolist()
        return f"{low}" if low == high else f"{low} to {high}, median {middle}"

    return {"width": quantiles(widths), "height": quantiles(heights)}
