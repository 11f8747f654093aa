"""Rows as the model sees them: chosen by number, or exactly those of one training update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

import numpy as np

from taskrecipe.description import DescribedImage, DescribedText, Description, Piece
from taskrecipe.errors import UsageError
from taskrecipe.previews.material import Material
from taskrecipe.recipe import Batch, Row
from taskrecipe.training.batches import BatchMaker, MicroBatch, Request, RowStore, update_requests
from taskrecipe.training.order import Rows
from taskrecipe.training.setup import count_updates, make_order
from taskrecipe.training.streaming import Position, walk_stream

VARIANTS = 4
"""In how many epochs a training row is shown, to see what is random about it."""


@dataclass(frozen=True)
class Example:
    """One row as the model sees it."""

    split: str
    row: int
    epoch: int
    description: Description
    source: str | None = None
    """The file and record that it comes from, if that is known."""
    batch: int | None = None
    """The number of its micro-batch in the update, from 1, if an update is previewed."""


@dataclass(frozen=True)
class UpdateBatches:
    """The micro-batches of one training update, over all processes, as the loop gets them."""

    number: int
    """Counted from 1, as in the log."""
    epoch: int
    rows: tuple[int, ...]
    batches: list[MicroBatch]
    examples: list[Example]


def choose_rows(size: int, count: int) -> list[int]:
    """Choose rows that are spread evenly over a split: files are often sorted by class or by source."""
    return sorted({int(row) for row in np.linspace(0, size - 1, min(count, size)).round()})


def describe_rows(material: Material, split: str, rows: Sequence[int], epoch: int = 0) -> list[Example]:
    """Describe rows by number, as they are in an epoch."""
    if material.stream is None or split != "train":
        _require_rows(rows, len(material.rows[split]), split)
    described = _describe(material, material.store(split), split, Request(tuple(rows), epoch))
    return [
        Example(split, row, epoch, one, material.find_source(split, row))
        for row, one in zip(rows, described, strict=True)
    ]


def describe_variants(material: Material, example: Example) -> list[Description]:
    """Describe a training row as it is in several epochs; nothing if it is the same in each of them."""
    maker = BatchMaker(material.recipe, material.store(example.split), training=True)
    if example.split != "train" or not maker.makes_examples:
        return []
    epochs = [Request((example.row,), epoch) for epoch in range(example.epoch, example.epoch + VARIANTS)]
    made = [maker.examples(request)[0] for request in epochs]
    if all(_are_same(made[0], other) for other in made[1:]):
        return []
    return [material.recipe.describe(row) for row in made]


def find_update(material: Material, number: int) -> UpdateBatches:
    """Return the micro-batches of an update, counted from 1: the very tensors that training gets."""
    spec, recipe = material.recipe.spec, material.recipe
    parts = spec.train.first_accumulate * spec.launch.processes
    rows, epoch, store = _find_rows(material, number - 1)
    requests = list(update_requests(rows, epoch, parts, range(parts)))
    maker = BatchMaker(recipe, store, training=True, count=recipe.loss_counts)
    batches = [maker[request] for request in requests]
    examples = [
        Example("train", row, epoch, described, material.find_source("train", row), part)
        for part, (request, batch) in enumerate(zip(requests, batches, strict=True), 1)
        if not request.filler
        for row, described in zip(
            request.rows, _add_padding(_describe(material, store, "train", request), batch.inputs), strict=True
        )
    ]
    return UpdateBatches(number, epoch, tuple(rows.tolist()), batches, examples)


def find_items(material: Material, first: UpdateBatches) -> bool:
    """Whether any training row has something to predict. Usually the first update shows it."""
    if any(any(batch.counts.values()) for batch in first.batches):
        return True
    rows, size = material.rows["train"], material.recipe.spec.train.batch_size
    maker = BatchMaker(material.recipe, rows, training=True, count=material.recipe.loss_counts)
    for start in range(0, len(rows), size):
        batch = maker[Request(tuple(range(start, min(start + size, len(rows)))))]
        if any(batch.counts.values()):
            return True
    return False


def _find_rows(material: Material, update: int) -> tuple[Rows, int, RowStore]:
    """Return the rows of an update, counted from 0, its epoch, and from where they can be taken."""
    spec, recipe = material.recipe.spec, material.recipe
    if material.stream is not None:
        _require_update(update, spec.train.updates or 0)
        found = next(islice(walk_stream(recipe, material.stream, Position()), update, None))
        return found.rows, found.epoch, found.store
    order = make_order(recipe, material.rows["train"])
    _require_update(update, count_updates(spec, order.updates_per_epoch))
    return order.rows(update), update // order.updates_per_epoch, material.rows["train"]


def _require_update(update: int, total: int) -> None:
    if not 0 <= update < total:
        raise UsageError(f"--update {update + 1}: the run has updates 1 to {total}")


def _require_rows(rows: Sequence[int], size: int, split: str) -> None:
    outside = [row for row in rows if not 0 <= row < size]
    if outside:
        raise UsageError(f"--rows {outside[0]}: split {split!r} has rows 0 to {size - 1}")


def _describe(material: Material, store: RowStore, split: str, request: Request) -> list[Description]:
    """Describe the rows of a request, with what is cut off."""
    maker = BatchMaker(material.recipe, store, training=split == "train")
    described = [material.recipe.describe(row) for row in maker.examples(request)]
    return _mark_cut(material, split, request, described)


# What is cut off ------------------------------------------------------------------------------------------


def _mark_cut(material: Material, split: str, request: Request, seen: list[Description]) -> list[Description]:
    """Add to each text the pieces that it lost because the row is too long."""
    recipe = material.uncut_recipe
    if recipe is None or split not in material.uncut or material.stream is not None:
        return seen
    maker = BatchMaker(recipe, material.uncut[split], training=split == "train")
    whole = [recipe.describe(row) for row in maker.examples(request)]
    return [merge_cut(part, full) for part, full in zip(seen, whole, strict=True)]


def merge_cut(seen: Description, whole: Description) -> Description:
    """Return what is seen, with the other pieces of the whole text marked as cut."""
    if not (isinstance(seen, DescribedText) and isinstance(whole, DescribedText)):
        return seen
    if len(seen.lines) != len(whole.lines):
        return seen
    lines = [list(_merge_line(part, full)) for part, full in zip(seen.lines, whole.lines, strict=True)]
    return replace(seen, lines=lines)


def _merge_line(seen: list[Piece], whole: list[Piece]) -> Iterator[Piece]:
    """Yield the pieces of the whole line: those that are seen as they are, each other one as cut.

    Tokenizers cut off the end of a text, or its beginning; so the seen pieces are matched from the side that stays.
    """
    if len(seen) == len(whole):
        yield from seen
        return
    from_end = bool(seen) and _matches_end(seen, whole)
    ours, theirs = (seen[::-1], whole[::-1]) if from_end else (seen, whole)
    merged, place = [], 0
    for piece in theirs:
        if place < len(ours) and ours[place].text == piece.text:
            merged.append(ours[place])
            place += 1
        else:
            merged.append(replace(piece, role="cut"))
    yield from merged[::-1] if from_end else merged


def _matches_end(seen: list[Piece], whole: list[Piece]) -> bool:
    """Whether more of the line stays at its end than at its beginning."""
    start = sum(1 for _ in _common(seen, whole))
    end = sum(1 for _ in _common(seen[::-1], whole[::-1]))
    return end > start


def _common(one: list[Piece], other: list[Piece]) -> Iterator[Piece]:
    for a, b in zip(one, other, strict=False):
        if a.text != b.text:
            return
        yield a


# Padding --------------------------------------------------------------------------------------------------


def _add_padding(described: list[Description], inputs: Batch) -> list[Description]:
    """Add padding up to the longest text of a micro-batch, which is where collators pad to."""
    groups: dict[str, list[DescribedText]] = {}
    for one in described:
        if isinstance(one, DescribedText):
            groups.setdefault(one.facts.get("task", ""), []).append(one)  # each task has a batch of its own
    widths = {task: _find_widths(texts, inputs) for task, texts in groups.items()}
    return [
        _pad(one, widths[one.facts.get("task", "")]) if isinstance(one, DescribedText) else one for one in described
    ]


def _find_widths(texts: list[DescribedText], inputs: Batch) -> list[int]:
    """Return how many tokens each sequence of a micro-batch's texts has after padding."""
    widths = [max(column, default=0) for column in zip_longest(*map(_count_tokens, texts), fillvalue=0)]
    choices = getattr(inputs.get("input_ids"), "ndim", 0) == 3  # all choices of all rows have one width
    return [max(widths)] * len(widths) if choices else widths


def _count_tokens(text: DescribedText) -> list[int]:
    """Return the number of tokens that the model sees of each sequence."""
    counts = [sum(piece.role != "cut" for piece in line) for line in text.lines]
    return [sum(counts)] if text.joined else counts


def _pad(text: DescribedText, widths: list[int]) -> DescribedText:
    missing = [width - count for width, count in zip(widths, _count_tokens(text), strict=False)]
    if text.joined:
        missing = [*[0] * (len(text.lines) - 1), *missing]
    lines = [
        [*line, Piece(f"padding ×{count}", "padding")] if count else line
        for line, count in zip(text.lines, missing, strict=True)
    ]
    return replace(text, lines=lines)


def _are_same(one: Row, other: Row) -> bool:
    return all(np.array_equal(np.asarray(one[key]), np.asarray(other[key])) for key in one)


def is_image(example: Example) -> bool:
    """Whether an example is an image."""
    return isinstance(example.description, DescribedImage)
