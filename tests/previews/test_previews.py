"""What a preview says about rows: what is cut off, padding, duplicates, what is odd, and what to do about it."""

from __future__ import annotations

import html.parser
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.support.runs import GLUE, write_regression, write_spec

from taskrecipe import DescribedImage, DescribedText, Piece, installed, preview
from taskrecipe.previews.examples import merge_cut
from taskrecipe.previews.lengths import Lengths, Texts, measure_padding
from taskrecipe.spec.resolve import resolve
from taskrecipe.training.order import Order

SPECS = Path(__file__).parents[2] / "specs"


@pytest.fixture(autouse=True)
def _quiet() -> None:
    warnings.simplefilter("ignore", UserWarning)


# What is cut off ------------------------------------------------------------------------------------------


def test_pieces_that_are_cut_off_are_shown_where_they_were(tmp_path: Path) -> None:
    whole = preview(write_spec(tmp_path), n=60)
    short = preview(tmp_path / "spec.toml", n=60, set={"task.max_length": 12})
    needed = []
    for full, cut in zip(whole.examples, short.examples, strict=True):
        pieces = [piece for line in cut.description.lines for piece in line]
        assert [piece.text for piece in pieces] == [p.text for line in full.description.lines for p in line]
        assert sum(piece.role != "cut" for piece in pieces) == min(12, len(pieces))
        needed.append(len(pieces))
    limit = short.statistics.splits["train"].limits["max_length"]
    assert limit.cut == sum(length > 12 for length in needed)
    for length, share in limit.levels.items():
        assert share == np.mean([other > length for other in needed])
    assert f"max_length = 12 cuts {100 * limit.share:.1f} %" in short.advice[0]


@given(st.data())
def test_a_text_that_lost_its_beginning_or_its_end_is_put_together_again(data) -> None:
    words = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
    kept = data.draw(st.integers(0, len(words)))
    from_end = data.draw(st.booleans())
    seen = words[len(words) - kept :] if from_end else words[:kept]
    line, full = ([Piece(word, surface=word) for word in some] for some in (seen, words))
    merged = merge_cut(DescribedText([line]), DescribedText([full]))
    assert [piece.text for piece in merged.lines[0]] == words
    assert sum(piece.role == "cut" for piece in merged.lines[0]) == len(words) - kept


# Padding --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_padding_is_what_collating_every_micro_batch_would_add(lengths, per_part, parts, seed) -> None:
    sizes = np.array(lengths)
    order = Order(len(sizes), per_part * parts, seed, "shuffled", lengths)
    measured = measure_padding(order, parts, [Texts(np.ones_like(sizes), sizes, sizes)], lengths)
    for kind, padding in measured.items():
        updates = Order(len(sizes), per_part * parts, seed, kind, lengths).epoch(0)
        pieces = [piece for update in updates for piece in np.array_split(update, parts) if len(piece)]
        assert padding.computed == sum(len(piece) * max(sizes[piece]) for piece in pieces)
        assert padding.tokens == sum(lengths)
    assert measured["bucketed"].computed <= sum(lengths) + 40 * len(sizes)


BATCHES = {"mrpc": ["input_ids"], "swag": ["input_ids"], "contrib/seq2seq": ["input_ids", "labels"]}


def test_the_batch_of_an_update_is_shown_with_its_padding() -> None:
    for name, endings in BATCHES.items():
        shown = preview(SPECS / f"{name}.toml", sample=True, update=2, set={"train.accumulate": 2})
        for number, batch in enumerate(shown.update.batches, 1):
            mine = [one.description for one in shown.examples if one.batch == number]
            expected = sum(
                int((batch.inputs[key] == fill).sum()) for key, fill in zip(endings, (0, -100), strict=False)
            )
            assert sum(count_padding(one) for one in mine) == expected


def count_padding(described: DescribedText) -> int:
    texts = [piece.text for line in described.lines for piece in line if piece.role == "padding"]
    return sum(int(text.removeprefix("padding ×")) for text in texts)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50))
def test_quantiles_are_lengths_that_occur(values) -> None:
    lengths = Lengths.of(values)
    assert lengths.p50 in values
    assert lengths.p95 in values
    assert np.mean([value <= lengths.p95 for value in values]) >= 0.95
    assert (lengths.max, lengths.total) == (max(values), sum(values))


# Numbers and advice ---------------------------------------------------------------------------------------


def test_duplicates_overlap_and_odd_rows_are_counted_and_named(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    header, *rows = (tmp_path / "train.csv").read_text().splitlines()
    first = rows[0].rsplit(",", 1)
    rows[10] = rows[0]
    rows[20] = f"{first[0]},{1 - int(first[1])}"
    rows[30] = ' "",broken \ufffd letter,1'.replace('"",', ",")
    (tmp_path / "train.csv").write_text("\n".join([header, *rows]))
    with (tmp_path / "validation.csv").open("a") as file:
        file.write(f"{rows[5]}\n")
    shown = preview(spec)
    train, validation = shown.statistics.splits["train"], shown.statistics.splits["validation"]
    assert (train.rows, train.duplicates, train.contradictions) == (60, 2, 1)
    assert (validation.also_in_train, validation.duplicates) == (1, 0)
    assert {what: odd.rows for what, odd in train.suspicious.items()} == {
        "sentence1 is blank": [30],
        "sentence2 has a replacement character, as after a wrong encoding": [30],
    }
    assert sum(train.classes.values()) == 60
    text = "\n".join(shown.advice)
    assert "validation: 1 rows (4.5 %) are also in train" in text
    assert "1 inputs occur with different targets" in text
    assert "--split train --rows 30" in text
    assert "'train.csv' record 1 " in preview(spec, rows=[0]).examples[0].source + " "


def test_a_rare_class_and_one_that_is_never_evaluated_are_pointed_out(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, GLUE.replace('name = "mrpc"', 'name = "pair"').replace('"f1"', '"accuracy"'))
    lines = (tmp_path / "train.csv").read_text().splitlines()
    lines[3] = lines[3].rsplit(",", 1)[0] + ",2"
    (tmp_path / "train.csv").write_text("\n".join(lines))
    text = "\n".join(preview(spec).advice)
    assert "class '2' occurs 1 times in 60" in text
    assert "validation: nothing of class '2'" in text


def test_items_are_those_that_the_loss_counts() -> None:
    shown = preview(SPECS / "mlm.toml", sample=True, update=3)
    masked = sum(int((batch.inputs["labels"] != -100).sum()) for batch in shown.update.batches)
    pieces = [p for one in shown.examples for line in one.description.lines for p in line if p.role == "masked"]
    assert shown.statistics.items == {"loss": masked}
    assert len(pieces) == masked


# Weights --------------------------------------------------------------------------------------------------


def test_no_weights_are_read(tmp_path: Path, zygote) -> None:
    spec = write_spec(tmp_path)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"these are no weights")
    assert zygote.run("run", str(spec), cwd=tmp_path).code == 2
    done = zygote.run("preview", str(spec), "--update", "2", "--html", "page.html", cwd=tmp_path)
    assert done.code == 0, done.stderr


# The page -------------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """The tags of a page, and what they refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("href", "src", "srcset", "action")]
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_needs_no_network_and_runs_nothing(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    train = (tmp_path / "train.csv").read_text().splitlines()
    train[1] = '"<script>alert(1)</script> </span>","&amp; <img src=http://example.org/x.png>",1'
    (tmp_path / "train.csv").write_text("\n".join(train))
    text = preview(spec, rows=[0]).html()
    page = Page(text)
    assert page.open == []
    assert {"script", "link", "img", "iframe"} & set(page.tags) == set()
    assert page.links == []
    assert "prefers-color-scheme: dark" in text
    assert "default-src 'none'" in text
    framed = preview(spec, rows=[0])._repr_html_()
    assert Page(framed.replace("</iframe>", "")).tags == ["iframe"]


def test_images_are_on_the_page_with_four_epochs_and_their_boxes() -> None:
    shown = preview(SPECS / "detection.toml", sample=True, n=3)
    page = Page(shown.html())
    assert all(isinstance(example.description, DescribedImage) for example in shown.examples)
    assert page.tags.count("svg") == 4 * 3
    assert all(link.startswith("data:image/") for link in page.links)
    variants = [shown.variants(example) for example in shown.examples]
    assert page.tags.count("rect") == sum(len(one.shapes) for several in variants for one in several)


# The command ----------------------------------------------------------------------------------------------


def test_the_command_prints_rows_numbers_and_advice(tmp_path: Path, zygote) -> None:
    spec = write_spec(tmp_path)
    plain = zygote.run("preview", str(spec), "--rows", "3,1", "--set", "task.max_length=12", cwd=tmp_path)
    assert plain.code == 0, plain.stderr
    assert plain.stdout.index("train row 3") < plain.stdout.index("train row 1")
    assert "~~" in plain.stdout
    assert "\x1b[" not in plain.stdout
    for part in ("label: equivalent", "tokens p95", "bucketed (this spec)", "advice: max_length = 12 cuts"):
        assert part in plain.stdout
    colored = zygote.run("preview", str(spec), "-n", "1", cwd=tmp_path, FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[" in colored.stdout
    found = json.loads(zygote.run("preview", str(spec), "--update", "9", "--json", cwd=tmp_path).stdout)
    assert found["update"]["number"] == 9
    assert len(found["examples"]) == 8
    assert found["statistics"]["updates"] == 9


def test_images_are_written_as_files(tmp_path: Path, zygote) -> None:
    spec = str(SPECS / "contrib" / "semantic_segmentation.toml")
    done = zygote.run("preview", spec, "--sample", "-n", "2", "--images", "seen", cwd=tmp_path)
    assert done.code == 0, done.stderr
    files = sorted((tmp_path / "seen").iterdir())
    assert [file.name for file in files] == ["train-0.png", "train-255.png"]
    assert f"in seen/{files[0].name}" in done.stdout
    assert max(Image.open(files[0]).size) >= 256


def test_a_spec_that_would_train_on_nothing_exits_3(tmp_path: Path, zygote) -> None:
    for folder in ("images", "maps"):
        (tmp_path / folder).mkdir()
    for number in range(4):
        Image.new("RGB", (16, 16), (number * 40, 0, 0)).save(tmp_path / "images" / f"{number}.png")
        Image.new("L", (16, 16), 255).save(tmp_path / "maps" / f"{number}.png")
    (tmp_path / "model").mkdir()
    spec = resolve(SPECS / "contrib" / "semantic_segmentation.toml", sample=True).spec
    installed().recipe("semantic_segmentation")(spec).sample(tmp_path / "model")
    (tmp_path / "spec.toml").write_text(
        'spec_version = 1\nrecipe = "semantic_segmentation"\n[task]\nlabels = ["a", "b"]\n[model]\n'
        'name = "model"\n[data]\nholdout = 0.5\n[data.files]\ntrain = "images"\n[data.maps]\ntrain = "maps"\n'
        "[train]\nepochs = 1\nbatch_size = 2\nlearning_rate = 1e-3\n"
    )
    done = zygote.run("preview", "spec.toml", cwd=tmp_path)
    assert done.code == 3, done.stdout + done.stderr
    assert "nothing would be trained on" in done.stderr


def test_a_run_that_stopped_at_a_bad_update_names_the_command_that_shows_it(tmp_path: Path, zygote) -> None:
    spec = write_regression(tmp_path, "1e30")
    done = zygote.run("run", str(spec), "--out", "run", cwd=tmp_path)
    assert done.code == 4, done.stderr
    command = done.stderr.strip().splitlines()[-2].partition("look at them: recipe ")[2]
    assert command.startswith(f"preview {tmp_path / 'run'} --update ")
    again = zygote.run(*command.split(), cwd=tmp_path)
    assert again.code == 0, again.stderr
