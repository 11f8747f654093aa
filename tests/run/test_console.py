from __future__ import annotations

import io
import json
import os
from collections.abc import Generator

import pytest

from taskrecipe.run.console import JsonLines, RunConsole, show_events
from taskrecipe.system.terminal import SafeStream, printable
from taskrecipe.training.events import (
    About,
    End,
    Evaluated,
    Evaluating,
    Event,
    Opened,
    Sample,
    Saved,
    Start,
    Updated,
    Warned,
)

EVENTS: list[Event] = [
    About(0, {"spec": "specs/mrpc.toml, recipe glue"}),
    About(0, {"device": "cpu, 2 cores, float32"}),
    Opened(0, "runs/mrpc"),
    About(0, {"data": "files: train 60 rows", "model": "Bert, 86,402 parameters"}),
    Sample(0, "the hub can't be reached"),
    Start(0, 20, 10, best_metric="accuracy"),
    Updated(1, 0, 1e-3),
    Updated(10, 0, 5e-4, 0.25, None, 1.5, 100.0, 0.0, 10.0),
    Evaluating(10, "validation", 1, 2),
    Evaluated(10, 0, {"accuracy": 0.5, "loss": 0.7}, True, 1.0),
    Saved(10, "step-10", 2**20, 0.5),
    Warned(10, "the data has [red]odd[/red] :smile: rows"),
    End(20, "finished", "all updates were taken"),
]


def _printed(*events: Event) -> list[str]:
    stream = io.StringIO()
    console = RunConsole(stream)
    for event in events:
        console.show(event)
    console.close()
    return stream.getvalue().splitlines()


def test_a_run_as_plain_lines():
    assert _printed(*EVENTS) == [
        "spec    specs/mrpc.toml, recipe glue",
        "device  cpu, 2 cores, float32",
        "folder  runs/mrpc",
        "data    files: train 60 rows",
        "model   Bert, 86,402 parameters",
        "!! Training on SAMPLE data with a tiny model, made on the spot: the hub can't be reached.",
        "!! The run works as a real one would; its numbers say nothing about the task.",
        "training: 20 updates, 10 per epoch",
        "update 10: loss 0.2500  lr 0.0005  grad norm 1.5",
        "evaluation after update 10: accuracy 0.5000  loss 0.7000  (best so far)",
        "saved step-10 (1.0 MiB in 0.50 s)",
        "warning: the data has [red]odd[/red] :smile: rows",
        "finished after update 20: all updates were taken",
    ]


def test_a_resumed_run_says_from_where():
    assert _printed(Start(5, 20, None, resumed_from=5)) == ["resuming after update 5 of 20"]


@pytest.mark.parametrize("text", ["a\x1b[31mb", "a\rb", "a\u202eb", "a\x9bb", "a\x07b", "a\udcffb"])
def test_text_from_data_can_not_control_the_terminal(text: str):
    (line,) = _printed(Warned(0, text))
    assert line.isprintable()
    assert line == f"warning: {text.encode('unicode_escape', 'surrogatepass').decode()}"
    assert printable("two\nlines\tgröße") == "two\nlines\tgröße"


def _two_events() -> Generator[Event, None, str]:
    yield Warned(0, "one")
    yield Warned(0, "two")
    return "result"


def test_showing_events_gives_back_their_result():
    stream = io.StringIO()
    assert show_events(_two_events(), stream) == "result"
    assert stream.getvalue().splitlines() == ["warning: one", "warning: two"]


def test_an_error_of_the_run_passes_through():
    def failing() -> Generator[Event, None, None]:
        yield Warned(0, "one")
        raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        show_events(failing(), io.StringIO())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("width", "more"), [(120, "  best accuracy 0.5000"), (80, "")])
def test_a_terminal_gets_a_bar_that_goes_at_the_end(width: int, more: str, monkeypatch: pytest.MonkeyPatch):
    """On a narrow terminal there are fewer numbers, and the counts are not cut off."""
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    console = RunConsole(stream)
    console.console.size = (width, 25)
    for event in EVENTS[:-1]:
        console.show(event)
    assert console.bar is not None
    console.show(Updated(12, 0, 5e-4, 0.25, None, 1.5, 100.0, 0.0, 10.0))
    assert console.bar.tasks[0].fields["numbers"] == f"loss 0.2500  lr 0.0005  100 rows/s{more}"
    console.show(Updated(13, 0, 5e-4, 0.25, None, 1.5, 100.0, 0.0, 10.0, tokens_per_second=2000.0))
    assert "2,000 tokens/s" in console.bar.tasks[0].fields["numbers"]
    console.show(EVENTS[-1])
    assert console.bar is None
    assert "update 10: loss" not in stream.getvalue()
    shown = stream.getvalue()
    assert "evaluation after update 10" in shown
    assert "time left" in shown
    assert "\x1b[33mwarning: the data has" in shown  # yellow


def test_a_terminal_shows_life_before_there_is_a_bar(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    console = RunConsole(stream)
    console.show(EVENTS[0])
    assert console.waiting is not None
    console.show(EVENTS[2])
    assert "loading data and model" in str(console.waiting.status)
    console.show(Start(0, 20, 10))
    assert console.waiting is None
    console.close()


def test_programs_get_the_lines_of_the_log_and_the_folder():
    stream = io.StringIO()
    lines = JsonLines(stream)
    for event in EVENTS:
        lines.show(event)
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    shown = [event for event in EVENTS if event.logged or isinstance(event, Opened)]
    assert [{key: value for key, value in record.items() if key != "time"} for record in records] == [
        json.loads(json.dumps(event.record())) for event in shown
    ]
    assert all(record["time"] > 0 for record in records)
    assert "evaluating" not in stream.getvalue()


# Errors ---------------------------------------------------------------------------------------------


def _broken_pipe() -> io.TextIOWrapper:
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w", buffering=1)  # noqa: PTH123


def _show_all(stream: io.TextIOBase) -> None:
    console = RunConsole(stream)  # type: ignore[arg-type]
    for event in EVENTS:
        console.show(event)
    console.close()


def test_a_reader_that_has_gone_does_not_end_the_run():
    stream = _broken_pipe()
    _show_all(stream)
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_full_disk_does_not_end_the_run():
    with open("/dev/full", "w", buffering=1) as stream:  # noqa: PTH123
        _show_all(stream)
        with pytest.raises(OSError, match="No space"):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_a_closed_stream_does_not_end_the_run():
    stream = io.StringIO()
    console = RunConsole(stream)
    stream.close()
    for event in EVENTS:
        console.show(event)


def test_a_terminal_that_goes_away_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    console = RunConsole(stream)
    for event in EVENTS[:9]:
        console.show(event)
    stream.close()
    for event in EVENTS[9:]:
        console.show(event)


def test_characters_that_a_stream_does_not_know_are_escaped():
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="ascii")
    SafeStream(stream).write("größe → 1\n")
    stream.flush()
    assert content.getvalue() == b"gr\\xf6\\xdfe \\u2192 1\n"
