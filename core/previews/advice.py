"""What the numbers of a preview suggest: each piece of advice is one sentence with its figures."""

from __future__ import annotations

from collections.abc import Iterator

from taskrecipe.previews.lengths import OrderKind
from taskrecipe.previews.statistics import SplitStatistics, Statistics
from taskrecipe.previews.tables import show_percent
from taskrecipe.spec.spec import Spec

CUT_SHARE = 0.01
"""From this share of cut rows on, another length is advised."""

PADDING_SAVED = 0.05
"""From this share of saved tokens on, another order is advised."""

RARE_ROWS = 10
"""A class with fewer training rows can hardly be learned."""

UNKNOWN_SHARE = 0.02
"""From this share of unknown tokens on, the tokenizer is questioned."""


def give_advice(spec: Spec, statistics: Statistics) -> list[str]:
    """Return what could be better, the most important first."""
    splits = statistics.splits
    return [
        *_advise_on_overlap(splits),
        *_advise_on_limits(splits["train"]),
        *_advise_on_order(spec.train.order, statistics),
        *_advise_on_classes(splits),
        *_advise_on_texts(splits),
    ]


def _advise_on_overlap(splits: dict[str, SplitStatistics]) -> Iterator[str]:
    for split, numbers in splits.items():
        if numbers.also_in_train:
            share = numbers.also_in_train / max(numbers.records, 1)
            yield (
                f"{split}: {numbers.also_in_train:,} rows ({show_percent(share)}) are also in train, "
                "so its metrics will be too optimistic: remove them from one of the two"
            )
        if numbers.contradictions:
            yield (
                f"{split}: {numbers.contradictions:,} inputs occur with different targets: "
                "no model can be right about all of them"
            )
    train = splits["train"]
    if train.duplicates:
        yield f"train: {train.duplicates:,} of {train.records:,} rows repeat an earlier one"


def _advise_on_limits(train: SplitStatistics) -> Iterator[str]:
    for key, limit in train.limits.items():
        shorter = {length: share for length, share in limit.levels.items() if length < limit.value}
        if limit.share >= CUT_SHARE:
            longer = {length: share for length, share in limit.levels.items() if length > limit.value}
            now = f"{key} = {limit.value} cuts {show_percent(limit.share)} of the training rows"
            yield f"{now}; {_list_levels(key, longer)}"
        elif shorter:
            yield f"{key} = {limit.value} is more than rows need; {_list_levels(key, shorter)}"


def _list_levels(key: str, levels: dict[int, float]) -> str:
    cuts = {0.0: "cuts nothing"}
    return ", ".join(
        f"{key + ' = ' if place == 0 else ''}{length} {cuts.get(share, f'cuts {show_percent(share)}')}"
        for place, (length, share) in enumerate(levels.items())
    )


def _advise_on_order(order: OrderKind, statistics: Statistics) -> Iterator[str]:
    if order not in statistics.padding:
        return
    now, bucketed = statistics.padding[order], statistics.padding["bucketed"]
    saved = 1 - bucketed.computed / now.computed if now.computed else 0.0
    if saved >= PADDING_SAVED:
        yield (
            f'order = "bucketed" saves {show_percent(saved)} of the tokens that are computed: '
            f"padding falls from {show_percent(now.share)} to {show_percent(bucketed.share)}"
        )


def _advise_on_classes(splits: dict[str, SplitStatistics]) -> Iterator[str]:
    train = splits["train"].classes
    total = sum(train.values())
    for name, count in train.items():
        if count < RARE_ROWS:
            yield f"train: class {name!r} occurs {count} times in {total:,}: it can hardly be learned"
    for split, numbers in splits.items():
        missing = [name for name, count in numbers.classes.items() if not count and train.get(name)]
        if missing and split != "train":
            yield f"{split}: nothing of class {', '.join(map(repr, missing[:5]))}, so no metric shows how it is learned"
    if total and max(train.values()) >= 0.9 * total:
        name = max(train, key=lambda key: train[key])
        share = show_percent(train[name] / total)
        yield f"train: {share} are class {name!r}: accuracy alone will not tell a good model"


def _advise_on_texts(splits: dict[str, SplitStatistics]) -> Iterator[str]:
    for split, numbers in splits.items():
        for what, odd in numbers.suspicious.items():
            rows = ",".join(map(str, odd.rows))
            yield f"{split}: in {odd.count:,} rows {what} (--split {split} --rows {rows})"
        if numbers.unknown is not None and numbers.unknown >= UNKNOWN_SHARE:
            share = show_percent(numbers.unknown)
            yield f"{split}: the tokenizer doesn't know {share} of the tokens: is it made for this language?"
