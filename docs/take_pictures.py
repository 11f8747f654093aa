"""`make pictures`: take the pictures of the site with Chromium: a report, and the preview of every recipe's sample."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from taskrecipe.plugins.registry import installed

PICTURES = Path(__file__).parent / "pages" / "pictures"
WIDTH, HEIGHT = 1000, 600
COLORS = 256
"""Colors of a picture: few enough to keep it small, enough to look the same."""


def main(names: list[str]) -> None:
    """Take all pictures, or those of the named recipes; `report` is the report's."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if not names or "report" in names:
            recipe("new", "glue", "mrpc.toml", place=place)
            recipe("run", "mrpc.toml", "--sample", "--quiet", place=place)
            take(place / "runs" / "mrpc-sample" / "report.html", PICTURES / "report.png", 1200, 900)
        for plugin in installed().plugins:
            if plugin.group == "recipes" and plugin.is_own and (not names or plugin.name in names):
                recipe("new", plugin.name, f"{plugin.name}.toml", place=place)
                options = ["--sample", "-n", "4", "--html", "page.html"]
                recipe("preview", f"{plugin.name}.toml", *options, place=place)
                hide_notes(place / "page.html")
                take(place / "page.html", PICTURES / "previews" / f"{plugin.name}.png", WIDTH, HEIGHT)


def recipe(*words: str, place: Path) -> None:
    """Run a command of this project."""
    subprocess.run([str(Path(sys.executable).parent / "recipe"), *words], cwd=place, check=True, capture_output=True)


def hide_notes(page: Path) -> None:
    """Leave out warnings and advice about the sample: the picture is of the rows."""
    page.write_text(page.read_text().replace("</head>", "<style>#notes { display: none }</style></head>"))


def take(page: Path, target: Path, width: int, height: int) -> None:
    """Take a picture of the top of a page, with few colors."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("there is no Chromium here")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-quic",
            "--no-first-run",
        ]
        options += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        options += [f"--user-data-dir={folder}/profile", f"--window-size={width},{height}", f"--screenshot={shot}"]
        subprocess.run([browser, *options, page.resolve().as_uri()], check=True, capture_output=True, timeout=120)
        small = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE)
    target.parent.mkdir(parents=True, exist_ok=True)
    small.save(target, optimize=True)
    print(target.relative_to(PICTURES), f"{target.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
