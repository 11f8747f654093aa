"""The numbers of a preview as tables of text, the same on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from taskrecipe.previews.statistics import SplitStatistics, Statistics

LISTED_CLASSES = 30
"""Classes of a split that are listed; the others are summed up."""


@dataclass(frozen=True)
class Table:
    """A table of text. The first row is its header, the first column names the rows."""

    title: str
    rows: list[list[str]]


def make_tables(statistics: Statistics, order: str) -> list[Table]:
    """Return the tables that have something to say."""
    made = [
        _make_split_table(statistics.splits),
        _make_class_table(statistics.splits),
        _make_padding_table(statistics, order),
        _make_item_table(statistics),
    ]
    return [table for table in made if len(table.rows) > 1]


def _make_split_table(splits: Mapping[str, SplitStatistics]) -> Table:
    numbers = list(splits.values())
    rows = [["", *splits], ["rows", *(f"{one.rows:,}" for one in numbers)]]
    if any(one.rows != one.records for one in numbers):
        rows.append(["made of records", *(f"{one.records:,}" for one in numbers)])
    rows += _length_rows(numbers)
    rows += _optional_row("unknown tokens", numbers, lambda one: show_percent(one.unknown))
    rows.append(["duplicates", *(f"{one.duplicates:,}" for one in numbers)])
    if len(numbers) > 1:
        shared = ["–" if name == "train" else f"{one.also_in_train:,}" for name, one in splits.items()]
        rows.append(["also in train", *shared])
    rows += _optional_row("same input, other target", numbers, lambda one: f"{one.contradictions:,}")
    rows += _mapped_rows("image", [one.image_sizes for one in numbers])
    rows += _mapped_rows("", [one.facts for one in numbers])
    rows += _mapped_rows("", [{what: f"{odd.count:,}" for what, odd in one.suspicious.items()} for one in numbers])
    return Table("Splits", rows)


def _length_rows(numbers: Sequence[SplitStatistics]) -> list[list[str]]:
    rows = []
    if any(one.lengths for one in numbers):
        for name in ("p50", "p95", "max"):
            rows.append(
                [f"tokens {name}", *(f"{getattr(one.lengths, name):,}" if one.lengths else "–" for one in numbers)]
            )
    for key in dict.fromkeys(key for one in numbers for key in one.limits):
        limits = [one.limits.get(key) for one in numbers]
        value = next(limit.value for limit in limits if limit)
        cells = [f"{limit.cut:,} rows ({show_percent(limit.share)})" if limit else "–" for limit in limits]
        rows.append([f"cut off by {key} = {value}", *cells])
    return rows


def _optional_row(
    name: str, numbers: Sequence[SplitStatistics], show: Callable[[SplitStatistics], str]
) -> list[list[str]]:
    cells = [show(one) for one in numbers]
    return [] if set(cells) <= {"–", "0", "0.0 %"} else [[name, *cells]]


def _mapped_rows(prefix: str, columns: Sequence[Mapping[str, str]]) -> list[list[str]]:
    names = dict.fromkeys(name for column in columns for name in column)
    return [[f"{prefix} {name}".strip(), *(column.get(name, "–") for column in columns)] for name in names]


def _make_class_table(splits: Mapping[str, SplitStatistics]) -> Table:
    counted = {split: one.classes for split, one in splits.items() if one.classes}
    names = list(dict.fromkeys(name for classes in counted.values() for name in classes))
    rows = [["class", *counted]]
    for name in names[:LISTED_CLASSES]:
        rows.append(
            [name, *(_count_share(classes.get(name, 0), sum(classes.values())) for classes in counted.values())]
        )
    if others := names[LISTED_CLASSES:]:
        sums = [sum(classes.get(name, 0) for name in others) for classes in counted.values()]
        rows.append([f"… {len(others)} more", *(f"{one:,}" for one in sums)])
    return Table("Classes", rows)


def _make_padding_table(statistics: Statistics, order: str) -> Table:
    rows = [["order", "padding", "tokens an epoch, with padding"]]
    for kind, padding in statistics.padding.items():
        name = f"{kind} (this spec)" if kind == order else kind
        rows.append([name, show_percent(padding.share), f"{padding.computed:,}"])
    return Table("Padding", rows)


def _make_item_table(statistics: Statistics) -> Table:
    rows = [["loss term", f"items counted in update {statistics.update}"]]
    rows += [[name, f"{count:,.10g}"] for name, count in statistics.items.items()]
    return Table("Loss", rows)


def _count_share(count: int, total: int) -> str:
    return f"{count:,} ({show_percent(count / total)})" if total else f"{count:,}"


def show_percent(share: float | None) -> str:
    """Return a share in percent; a dash if it is unknown."""
    return "–" if share is None else f"{100 * share:.1f} %"
