"""The report in a real browser: what it shows, what it answers to, and that nothing leaves it."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_page import HOSTILE
from tests.support.reported_runs import LABELS, box_rows, class_rows, map_rows, value_rows, write_evidence, write_run

from taskrecipe import write_report

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def tickets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every part."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "tickets")
    write_evidence(folder, class_rows(), labels=LABELS)
    return write_report([folder])


@pytest.fixture
def page(browser: Any, tickets: Path) -> Iterator[Any]:
    """The report on a wide screen. At the end nothing may have left the page, and no error been reported."""
    yield from open_page(browser, tickets)


def open_page(browser: Any, path: Path, width: int = 1280, **settings: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
    opened, problems = context.new_page(), list[str]()
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: None if is_inside(request.url) else problems.append(request.url))
    opened.goto(path.as_uri())
    yield opened
    context.close()
    assert problems == []


def is_inside(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:"))


def texts(page: Any, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def test_every_section_is_there(page: Any) -> None:
    titles = ["Curves", "Quality", "Rows", "Warnings", "Use it", "Spec", "Environment"]
    assert texts(page, "h2") == titles
    assert page.locator("h1").inner_text() == "tickets"
    assert page.locator("nav a").count() == 8
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(set(ids)) == len(ids)


def test_a_table_is_sorted_by_any_column(page: Any) -> None:
    table = "#table-classes-validation"
    column = f"{table} tbody td:nth-child(5)"
    head = page.locator(f"{table} th", has_text="recall")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    values = [float(value) for value in texts(page, column)]
    assert values == sorted(values, reverse=True)
    head.locator("button").press("Enter")
    assert [float(value) for value in texts(page, column)] == sorted(values)
    page.locator(f"{table} th", has_text="class").locator("button").click()
    assert texts(page, f"{table} tbody td:first-child") == sorted(LABELS)


def test_rows_are_filtered_and_ordered(page: Any) -> None:
    shown = page.locator(".row:visible")
    assert shown.count() == 50
    page.locator(".sets label", has_text="random").click()
    assert shown.count() == 20
    page.locator(".sets label", has_text="all shown").click()
    whole = shown.count()
    page.get_by_label("order").select_option("row")
    numbers = [int(row.get_attribute("data-row")) for row in shown.all()]
    assert numbers == sorted(numbers)
    page.get_by_label("search").fill("phone")
    assert 0 < shown.count() < whole
    assert all("phone" in text for text in shown.all_inner_texts())
    page.get_by_label("search").fill("no row has this")
    assert shown.count() == 0
    assert page.get_by_text("No row matches.").is_visible()


def test_a_cell_leads_to_the_rows_behind_it(page: Any) -> None:
    page.get_by_label("rows of refund predicted as billing").press("Enter")
    rows = page.locator(".row:visible")
    assert rows.count() >= 8
    assert page.locator(".cell-filter").inner_text() == f"× refund predicted as billing: {rows.count()} of 43 rows kept"
    for row in rows.all():
        assert row.locator(".answers dd").all_inner_texts() == ["refund", "billing"]
    page.locator(".cell-filter").click()
    assert page.locator(".row:visible").count() == 50


def test_the_pointer_and_the_arrow_keys_read_a_curve(page: Any) -> None:
    figure = page.locator("#figure-loss")
    tip = figure.locator(".tip")
    assert tip.is_hidden()
    box = figure.locator("svg:visible").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2)
    assert tip.inner_text().startswith("update ")
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    figure.locator(".plots").focus()
    page.keyboard.press("Home")
    assert tip.inner_text().splitlines()[0] == "update 1"
    page.keyboard.press("ArrowRight")
    assert tip.inner_text().splitlines()[0] == "update 2"
    page.keyboard.press("End")
    assert tip.inner_text().splitlines()[0] == "update 120"
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_curves_are_drawn_by_update_epoch_and_time(page: Any) -> None:
    plots = page.locator("#figure-loss .plot:visible")
    assert plots.get_attribute("data-axis") == "update"
    page.locator("#axis input").first.focus()
    for axis, label in (("epoch", "epoch"), ("time", "minutes of work")):
        page.keyboard.press("ArrowRight")
        assert plots.get_attribute("data-axis") == axis
        assert plots.locator(".label").text_content() == label
        assert page.locator("#figure-metric-f1 .plot:visible").get_attribute("data-axis") == axis


def test_a_series_is_hidden_and_shown(page: Any) -> None:
    key = page.locator("#figure-terms .key").first
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert page.locator("#figure-terms .plot:visible .series").first.is_hidden()
    key.click()
    assert page.locator("#figure-terms .plot:visible .series").first.is_visible()


def test_every_figure_has_its_numbers(page: Any) -> None:
    for figure in page.locator("[data-figure]").all():
        figure.locator("summary").click()
        figure.locator(".numbers tbody tr").first.wait_for()  # fails if none appears
    assert page.locator("#figure-time .numbers tbody tr").count() == 4
    with page.expect_download() as download:
        page.locator("#figure-learning_rate .csv").click()
    rows = list(csv.reader(io.StringIO(Path(download.value.path()).read_text())))
    assert rows[0] == ["series", "update", "epoch", "minutes of work", "Learning rate"]
    assert len(rows) == 121
    assert [float(row[4]) for row in rows[1:]] == pytest.approx(
        [5e-5 * (1 - step / 120) for step in range(1, 121)], rel=1e-5
    )
    with page.expect_download() as download:
        page.locator("#table-classes-validation .csv").click()
    table = list(csv.reader(io.StringIO(Path(download.value.path()).read_text())))
    assert [row[0] for row in table] == ["class", *LABELS]


def test_the_theme_follows_the_system_and_the_switch(browser: Any, tickets: Path) -> None:
    for page in open_page(browser, tickets, color_scheme="dark"):
        assert brightness(page) < 60
        switch = page.locator("#theme")
        switch.press("Enter")
        assert brightness(page) > 200
        switch.click()
        assert brightness(page) < 60
        switch.click()
        page.emulate_media(color_scheme="light")
        assert brightness(page) > 200
        page.emulate_media(color_scheme="dark", media="print")
        assert brightness(page) == 255


def brightness(page: Any) -> float:
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(float, color.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_the_spec_shows_defaults_on_demand(page: Any) -> None:
    default = page.locator(".spec tr", has_text="train.clip_norm")
    assert default.is_hidden()
    page.get_by_label("show defaults").check()
    assert default.is_visible()


@pytest.mark.parametrize("kind", ["tickets", "values", "boxes", "maps", "two", "new"])
def test_a_phone_shows_everything_without_scrolling_sideways(kind: str, browser: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path / kind)
    rows = {"tickets": class_rows, "two": class_rows, "values": value_rows, "boxes": box_rows, "maps": map_rows}
    labels = {"values": [], "boxes": ["red", "blue"], "maps": ["ground", "sky"]}
    if kind == "new":
        (folder / "log.jsonl").unlink()
    else:
        write_evidence(folder, rows[kind](), labels=labels.get(kind, LABELS))
    others = [write_run(tmp_path / "other", seed=2, rate=1e-4)] if kind == "two" else []
    for page in open_page(browser, write_report([folder, *others], tmp_path / "report.html"), width=360):
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator("h1").first.is_visible()


def test_text_from_data_runs_nothing(browser: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "hostile")
    rows = class_rows(40)
    for row in rows:
        row["input"] = {HOSTILE: HOSTILE}
        row["reference"]["label"] = HOSTILE
    write_evidence(folder, rows, labels=[HOSTILE, *LABELS])
    for page in open_page(browser, write_report([folder])):
        page.locator("#figure-calibration-validation summary").click()
        page.locator(".confusion button").first.click()
        assert page.evaluate("window.harmed") is None
        assert HOSTILE.strip() in page.locator(".row:visible .texts").first.text_content()
