"""The commands and their options; each imports what it needs when it is called, so that all start fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from taskrecipe.core.cli import completion

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 unexpected, 2 wrong spec or command line, 3 data doesn't fit, "
    "4 the run stopped itself, 5 a plugin failed, 130/143 interrupted with the checkpoint saved.",
)

SPECS, RUNS, CATALOG = "Specs", "Runs", "What is installed"

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A spec.", autocompletion=completion.specs)]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a value, e.g. train.epochs=1. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Processes = Annotated[int | None, typer.Option(min=1, help="Processes on this machine, instead of what the spec says.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"recipe {version('taskrecipe')}")
        raise typer.Exit


@app.callback()
def recipe(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train models from a TOML file.

    Start with `recipe list`, then `recipe new NAME`, `recipe validate`, `recipe run`.
    """


@app.command(rich_help_panel=RUNS, epilog="Example: recipe run specs/mrpc.toml --set train.epochs=1")
def run(
    spec: SpecFile,
    sets: Sets = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The run's folder; by default runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    sample: Annotated[bool, typer.Option("--sample", help="Train on the recipe's sample data and tiny model.")] = False,
    dry: Annotated[bool, typer.Option("--dry", help="Print the plan and its costs only.")] = False,
    processes: Processes = None,
) -> None:
    """Train what a spec describes."""
    from taskrecipe.core.cli.run import run

    run(spec, sets=sets or [], out=out, resume=resume, sample=sample, dry=dry, processes=processes)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe resume runs/mrpc")
def resume(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    sets: Sets = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Accept a difference that changes results. Repeatable."),
    ] = None,
    processes: Processes = None,
) -> None:
    """Go on with a run from its newest sound checkpoint."""
    from taskrecipe.core.cli.run import resume

    resume(folder, sets=sets or [], allow=allow or [], processes=processes)


@app.command(rich_help_panel=RUNS)
def fingerprint(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    at: Annotated[str, typer.Option(metavar="best|last|step-N", help="Which checkpoint.")] = "last",
) -> None:
    """Print the sha256 over the weights and optimizer state of a checkpoint."""
    from taskrecipe.core.cli.fingerprint import fingerprint

    fingerprint(folder, at)


@app.command(rich_help_panel=SPECS, epilog="Example: recipe validate specs 'mine/**/*.toml' --format github")
def validate(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Files, folders, globs.", autocompletion=completion.specs),
    ],
    output: Annotated[
        Literal["text", "json", "github", "sarif"], typer.Option("--format", help="How problems are printed.")
    ] = "text",
) -> None:
    """Check specs; every problem of every file at once."""
    from taskrecipe.core.cli.validate import validate

    raise typer.Exit(validate(paths, output))


@app.command(rich_help_panel=SPECS, epilog="Example: recipe new glue experiments/first.toml")
def new(
    name: Annotated[str, typer.Argument(help="A recipe.", autocompletion=completion.recipes)],
    path: Annotated[Path | None, typer.Argument(help="Where to write; by default NAME.toml here.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a commented starter spec that validates as it is."""
    from taskrecipe.core.cli.new import new

    new(name, path, force=force)


@app.command("new-plugin", rich_help_panel=CATALOG, epilog="Example: recipe new-plugin headlines")
def new_plugin(
    name: Annotated[str, typer.Argument(help="What the recipe will be called.")],
    folder: Annotated[Path | None, typer.Argument(help="Where to write; by default recipe-NAME here.")] = None,
) -> None:
    """Write a package with a recipe of your own, its test and its CI."""
    from taskrecipe.core.cli.new_plugin import new_plugin

    new_plugin(name, folder)


@app.command(rich_help_panel=SPECS, epilog="Example: recipe explain specs/mrpc.toml train.learning_rate")
def explain(
    spec: SpecFile,
    key: Annotated[str, typer.Argument(help="A dotted key or a table.", autocompletion=completion.keys)],
    sets: Sets = None,
    sample: Annotated[bool, typer.Option("--sample", help="As with recipe run --sample.")] = False,
) -> None:
    """Say what a key's value is, where it came from, and what is allowed."""
    from taskrecipe.core.cli.explain import explain

    explain(spec, key, sets or [], sample=sample)


@app.command(rich_help_panel=SPECS)
def migrate(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Spec files.", autocompletion=completion.specs)
    ],
) -> None:
    """Rewrite specs of an older version in place, comments kept."""
    from taskrecipe.core.cli.migrate import migrate

    migrate(paths)


@app.command(rich_help_panel=SPECS, epilog="Example: recipe schema > .taskrecipe.schema.json")
def schema(
    name: Annotated[str | None, typer.Argument(help="Only this recipe.", autocompletion=completion.recipes)] = None,
) -> None:
    """Print the JSON Schema of specs, for editors; what is installed is in it."""
    import json

    from taskrecipe.core.spec.schema import build

    typer.echo(json.dumps(build(name), indent=2, ensure_ascii=False))


@app.command("list", rich_help_panel=CATALOG)
def list_recipes(as_json: AsJson = False) -> None:
    """List the recipes."""
    from taskrecipe.core.cli.catalog import print_recipes

    print_recipes(as_json=as_json)


@app.command(rich_help_panel=CATALOG, epilog="Example: recipe show glue")
def show(
    name: Annotated[
        str,
        typer.Argument(help="A recipe, optimizer, schedule, …", autocompletion=completion.plugins),
    ],
    group: Annotated[
        Literal["recipes", "optimizers", "schedules", "callbacks", "trackers"] | None,
        typer.Option(help="Where to look, if the name is in several groups."),
    ] = None,
) -> None:
    """Explain a recipe or plugin: options, metrics, columns, an example."""
    from taskrecipe.core.cli.show import show

    show(name, group)


@app.command(rich_help_panel=CATALOG)
def plugins(as_json: AsJson = False) -> None:
    """List every entry point: where it comes from, whether it loads, how long that takes."""
    from taskrecipe.core.cli.catalog import print_plugins

    print_plugins(as_json=as_json)
