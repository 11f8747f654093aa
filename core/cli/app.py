"""The commands and their options. Each command imports its module when it is called, so that all start fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from taskrecipe.cli.help import completion
from taskrecipe.cli.help.commands import Commands
from taskrecipe.cli.help.set_completion import complete_sets

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 unexpected error, 2 wrong spec or command line, 3 data doesn't fit, "
    "4 the run stopped itself, 5 a plugin failed, 130/143 interrupted and checkpoint saved.",
)

SPECS, RUNS, CATALOG = "Specs", "Runs", "Plugins"

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A spec.", autocompletion=completion.complete_specs)]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace a value, e.g. train.epochs=1. Repeatable.",
        autocompletion=complete_sets,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Accept a change of this key though it changes results. Repeatable."),
]
Sample = Annotated[bool, typer.Option("--sample", help="Train on the recipe's sample data and tiny model.")]
RunFolder = Annotated[Path | None, typer.Option(metavar="FOLDER", help="The run's folder; by default runs/NAME.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
JsonEvents = Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON on stdout.")]
Parallel = Annotated[int | None, typer.Option(min=1, max=1024, help="Runs at a time on this machine.")]
Processes = Annotated[int | None, typer.Option(min=1, help="Processes on this machine; overrides the spec.")]


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
    out: RunFolder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in that folder.")] = False,
    sample: Sample = False,
    dry: Annotated[bool, typer.Option("--dry", help="Only print what would be done and its cost.")] = False,
    allow: Allow = None,
    processes: Processes = None,
    quiet: Quiet = False,
    as_json: JsonEvents = False,
) -> None:
    """Train a model as a spec describes."""
    from taskrecipe.cli.run import choose_output, run

    run(
        spec,
        sets=sets or [],
        out=out,
        resume=resume,
        allow=allow or [],
        sample=sample,
        dry=dry,
        processes=processes,
        output=choose_output(quiet=quiet, as_json=as_json),
    )


@app.command(rich_help_panel=RUNS, epilog="Example: recipe resume runs/mrpc")
def resume(
    folder: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's folder, or its mirror such as s3://bucket/runs/mrpc.")
    ],
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to put a run at a URL; by default runs/NAME.")
    ] = None,
    allow: Allow = None,
    processes: Processes = None,
    quiet: Quiet = False,
    as_json: JsonEvents = False,
) -> None:
    """Continue a run from its newest intact checkpoint."""
    from taskrecipe.cli.run import choose_output, resume

    output = choose_output(quiet=quiet, as_json=as_json)
    resume(folder, sets=sets or [], allow=allow or [], processes=processes, out=out, output=output)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe fetch s3://bucket/runs/mrpc")
def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="The mirror of a run, such as s3://bucket/runs/mrpc.")],
    out: RunFolder = None,
    as_json: AsJson = False,
) -> None:
    """Copy a run from its mirror to this machine."""
    from taskrecipe.cli.fetch import fetch

    fetch(url, out, as_json=as_json)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe sweep sweeps/mrpc.toml --parallel 2")
def sweep(
    spec: Annotated[
        Path,
        typer.Argument(metavar="SWEEP", help="A spec with \\[sweep].", autocompletion=completion.complete_specs),
    ],
    sets: Sets = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Its folder; by default runs/NAME-sweep.")] = None,
    sample: Sample = False,
    parallel: Parallel = None,
    dry: Annotated[bool, typer.Option("--dry", help="Only print the plan and its cost.")] = False,
    allow: Allow = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try trials again that have failed.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Search for the best values of some keys. Each trial is a run of its own.

    Run the same command again to continue a sweep that was interrupted, and on
    further machines to share the work in one folder.
    """
    from taskrecipe.cli.sweep import sweep

    options = {"set": sets or [], "sample": sample, "parallel": parallel}
    sweep(spec, options, out=out, allow=allow or [], retry=retry, dry=dry, quiet=quiet, as_json=as_json)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe repeat specs/mrpc.toml --seeds 5")
def repeat(
    spec: SpecFile,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many runs, each with a seed of its own.")] = 5,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the runs; by default runs/NAME-repeat.")
    ] = None,
    sample: Sample = False,
    parallel: Parallel = None,
    allow: Allow = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try runs again that have failed.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a spec with several seeds: mean, interval and spread of each metric."""
    from taskrecipe.cli.repeat import repeat

    options = {"set": sets or [], "sample": sample, "parallel": parallel or 1, "seeds": seeds}
    repeat(spec, options, out=out, allow=allow or [], retry=retry, quiet=quiet, as_json=as_json)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe submit specs/mrpc.toml --slurm --set submit.nodes=2")
def submit(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="SPEC|RUN", help="A spec, or a run that is to go on.", autocompletion=completion.complete_specs
        ),
    ],
    slurm: Annotated[bool, typer.Option("--slurm", help="Submit to SLURM, by sbatch.")] = False,
    dry: Annotated[bool, typer.Option("--dry", help="Only print the batch script.")] = False,
    sets: Sets = None,
    out: RunFolder = None,
    sample: Sample = False,
    as_json: AsJson = False,
) -> None:
    """Hand a run to a cluster, as the table `submit` of its spec says.

    Before the time limit of a job the run saves, and goes on in the next one.
    Its weights are those of a run that was never interrupted.
    """
    from taskrecipe.cli.submit import submit

    submit(target, sets=sets or [], out=out, sample=sample, slurm=slurm, dry=dry, as_json=as_json)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe replay runs/mrpc")
def replay(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that has finished.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the replay; by default runs/NAME-replay.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Largest difference between metrics that counts as equal.")
    ] = 0.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train the spec of a run again in its recorded conditions: did it come out the same?

    Exit code 0: the same bits, or metrics as \\[expect] says, or within the
    tolerance. 4: not the same; what differs is printed.
    """
    from taskrecipe.cli.replay import replay

    replay(folder, out=out, tolerance=tolerance, quiet=quiet, as_json=as_json)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe report runs/mrpc runs/mrpc-2 -o both.html")
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="File to write; by default RUN/report.html."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write curves and tables as PNG files instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write what came out of one run or several, or of a sweep, as a page that opens offline."""
    from taskrecipe.cli.report import report

    report(folders, out, png, as_json=as_json)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe watch runs/mrpc")
def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")], as_json: JsonEvents = False
) -> None:
    """Follow a run in the terminal until it ends."""
    from taskrecipe.cli.watch import watch

    raise typer.Exit(watch(folder, as_json=as_json))


@app.command(rich_help_panel=RUNS, epilog="Example: recipe runs --where 'best.f1>0.8' --columns train.epochs,best.f1")
def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="FOLDER", help="Folders that hold runs; by default runs/.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only such runs; also !=, <, <=, >, >=, and * in a text. Repeatable."),
    ] = None,
    sort: Annotated[
        str, typer.Option(metavar="KEY", help="created (newest first), best or best.METRIC (best first), or any key.")
    ] = "created",
    columns: Annotated[
        str, typer.Option(metavar="KEY,...", help="Keys to print, of results, spec, best.METRIC or environment.KEY.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List runs: their state, best metric and any other values.

    A run is training, finished, stopped (by a signal), failed, interrupted
    (its process was killed) or damaged. All but the last can be resumed. A
    run that was submitted may also be queued or, once it has begun, requeued.
    """
    from taskrecipe.cli.runs import print_runs

    chosen = [key.strip() for key in columns.split(",") if key.strip()]
    print_runs(folders or [], where=where or [], sort=sort, columns=chosen, as_json=as_json)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe compare runs/mrpc runs/mrpc-2")
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Runs; the first is the baseline.")],
    rows: Annotated[int, typer.Option(min=0, metavar="N", help="Rows of each kind to show.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Compare runs: specs, data, metrics with their uncertainty, rows.

    On the same rows, each difference of a metric has a paired bootstrap
    interval and a permutation p-value. Runs that differ in their seed only
    are taken together. `recipe guide compare` says how to read it.
    """
    from taskrecipe.cli.compare import print_comparison

    print_comparison(folders, rows=rows, as_json=as_json)


@app.command(rich_help_panel=SPECS, epilog="Example: recipe preview specs/mrpc.toml --html preview.html")
def preview(
    target: Annotated[
        Path,
        typer.Argument(metavar="SPEC|RUN", help="A spec or a run's folder.", autocompletion=completion.complete_specs),
    ],
    count: Annotated[int, typer.Option("-n", min=0, help="Rows to show.")] = 8,
    update: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Show the rows that training sees at this update.")
    ] = None,
    rows: Annotated[str | None, typer.Option(metavar="17,203", help="Show these rows, by number.")] = None,
    split: Annotated[str, typer.Option(help="The split to show rows of.")] = "train",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that needs no network.")] = None,
    images: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the shown images as files.")] = None,
    sets: Sets = None,
    sample: Annotated[bool, typer.Option("--sample", help="Show the recipe's sample data.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show rows as the model sees them, numbers about all rows, and advice. Loads no weights."""
    from taskrecipe.cli.preview import show_preview

    options = {"n": count, "update": update, "split": split, "set": sets or [], "sample": sample}
    show_preview(target, options, rows=rows, html=html, images=images, as_json=as_json)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe evaluate runs/mrpc --split test --by topic")
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    at: Annotated[str, typer.Option(metavar="best|last|step-N", help="Which weights.")] = "best",
    split: Annotated[str | None, typer.Option(help="Another split of the run's data, such as test.")] = None,
    data: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A file with other data instead. Repeatable.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Also print the metrics for each value of a column.")
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write what was found about each row into this folder.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Largest difference from a logged number that counts as equal.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Measure a trained run again, and check that the numbers are equal to the logged ones."""
    from taskrecipe.cli.evaluate import evaluate

    evaluate(
        folder,
        at=at,
        split=split,
        data=data or [],
        by=by,
        evidence=evidence,
        tolerance=tolerance,
        as_json=as_json,
    )


@app.command(rich_help_panel=RUNS, epilog="Example: recipe predict runs/mrpc new.csv -o answers.csv")
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    rows: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="csv, tsv, jsonl, parquet, text, images, a folder, a glob, or - for stdin."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="OUT", help="csv, jsonl, parquet, or a folder for images; by default stdout."
        ),
    ] = None,
    at: Annotated[str, typer.Option(metavar="best|last|step-N", help="Which weights.")] = "best",
    task: Annotated[str | None, typer.Option(help="Which task, if the run has several.")] = None,
    nearest: Annotated[
        str | None, typer.Option(metavar="FILE", help="Add the nearest rows of this file, for a run that embeds texts.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out rows that can't be used, and list them in a file.")
    ] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Rows per forward pass at most.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of [predict], e.g. predict.beams=4."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With -o: print as JSON what was written.")] = False,
) -> None:
    """Predict rows that have no targets. If it was killed, the same command goes on where it was."""
    from taskrecipe.cli.predict import predict
    from taskrecipe.use.predict import Plan

    plan = Plan(folder, at, tuple(sets or []), batch_size, task, processes, skip_bad, nearest)
    predict(plan, rows, out, as_json=as_json)


@app.command(rich_help_panel=RUNS, epilog="Example: recipe export runs/mrpc --to onnx -o mrpc-onnx")
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    to: Annotated[
        Literal["hf", "onnx", "hub"],
        typer.Option(
            help="hf: one model in the Hugging Face layout, adapters merged; onnx: a graph, with the processor and a "
            "predict.py that needs no torch; hub: upload it, with a model card."
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Folder to write; by default RUN/hf or RUN/onnx."),
    ] = None,
    repo: Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="The hub repository to upload to.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new hub repository public.")] = False,
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, help="Largest difference of outputs that is accepted, relative to the largest output."),
    ] = 1e-4,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export in that folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's model in another form, after loading it again in a fresh process and comparing outputs.

    Nothing is written if the outputs differ.
    """
    from taskrecipe.cli.export import export

    export(run, to, folder, as_json=as_json, repo=repo, private=not public, tolerance=tolerance, force=force)


@app.command(rich_help_panel=RUNS)
def fingerprint(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    at: Annotated[str, typer.Option(metavar="best|last|step-N", help="Which checkpoint.")] = "last",
    as_json: AsJson = False,
) -> None:
    """Print the sha256 of the weights and optimizer state of a checkpoint."""
    from taskrecipe.cli.fingerprint import fingerprint

    fingerprint(folder, at, as_json=as_json)


@app.command(rich_help_panel=SPECS, epilog="Example: recipe validate specs 'mine/**/*.toml' --format github")
def validate(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Files, folders, globs.", autocompletion=completion.complete_specs),
    ],
    output: Annotated[
        Literal["text", "json", "github", "sarif"], typer.Option("--format", help="Format of the problems.")
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Check specs and print all problems of all files."""
    from taskrecipe.cli.validate import validate

    raise typer.Exit(validate(paths, "json" if as_json else output))


@app.command(rich_help_panel=SPECS, epilog="Example: recipe new glue tickets.toml --data tickets.csv")
def new(
    name: Annotated[str, typer.Argument(help="A recipe.", autocompletion=completion.complete_recipes)],
    path: Annotated[Path | None, typer.Argument(help="File to write; by default NAME.toml.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE|FOLDER", help="Your data: a csv, jsonl, COCO or SQuAD file, a folder of images, …"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a spec with comments, which is valid as written: an example, or one for your data."""
    from taskrecipe.cli.new import new

    new(name, path, data=data, force=force, as_json=as_json)


@app.command("new-plugin", rich_help_panel=CATALOG, epilog="Example: recipe new-plugin mixup --kind technique")
def new_plugin(
    name: Annotated[str, typer.Argument(help="The name that specs will use.")],
    folder: Annotated[Path | None, typer.Argument(help="Folder to write; by default recipe-NAME.")] = None,
    kind: Annotated[
        Literal["recipe", "metric", "technique", "optimizer", "schedule", "callback", "tracker"],
        typer.Option(help="What the package adds."),
    ] = "recipe",
    as_json: AsJson = False,
) -> None:
    """Write a package with your own recipe or other plugin, its test and its CI."""
    from taskrecipe.cli.new_plugin import new_plugin

    new_plugin(name, folder, kind, as_json=as_json)


@app.command(rich_help_panel=SPECS, epilog="Example: recipe explain specs/mrpc.toml train.learning_rate")
def explain(
    spec: SpecFile,
    key: Annotated[
        str | None,
        typer.Argument(help="A dotted key or a table; by default all keys.", autocompletion=completion.complete_keys),
    ] = None,
    sets: Sets = None,
    sample: Annotated[bool, typer.Option("--sample", help="Explain what recipe run --sample would use.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a key's value, where it came from, and which values are allowed; without a key, all of them."""
    from taskrecipe.cli.explain import explain

    explain(spec, key, sets or [], sample=sample, as_json=as_json)


@app.command(rich_help_panel=SPECS, epilog="Example: recipe diff specs/mrpc.toml runs/mrpc")
def diff(
    first: Annotated[
        Path, typer.Argument(metavar="SPEC", help="A spec or a run's folder.", autocompletion=completion.complete_specs)
    ],
    second: Annotated[
        Path, typer.Argument(metavar="SPEC", help="Another one.", autocompletion=completion.complete_specs)
    ],
    as_json: AsJson = False,
) -> None:
    """Print the keys in which two specs differ, and where each value came from.

    Specs are compared resolved: with what they extend, and with defaults.
    Exit codes are those of diff: 0 no difference, 1 some, 2 a spec is wrong.
    """
    from taskrecipe.cli.diff import diff

    raise typer.Exit(diff(first, second, as_json=as_json))


@app.command(
    "from-trainer",
    rich_help_panel=SPECS,
    context_settings={"ignore_unknown_options": True},
    epilog="Example: recipe from-trainer -o mrpc.toml -- run_glue.py --task_name mrpc --learning_rate 2e-5",
)
def from_trainer(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE | -- ARGUMENTS...",
            help="A JSON or YAML file of TrainingArguments, an Accelerate config, a shell script; or a command line.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option("--recipe", help="The recipe, if no script says it.", autocompletion=completion.complete_recipes),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="File to write; by default stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a spec for settings of transformers' Trainer and its example scripts.

    Comments name the setting that each value came from, and those without
    an equivalent. Everything after -- is the command line to convert.
    """
    from taskrecipe.cli.from_trainer import from_trainer

    from_trainer(words, name, out, force=force, as_json=as_json)


@app.command(rich_help_panel=SPECS)
def migrate(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Spec files.", autocompletion=completion.complete_specs)
    ],
    as_json: AsJson = False,
) -> None:
    """Rewrite specs of an older version in place. Comments are kept."""
    from taskrecipe.cli.migrate import migrate

    migrate(paths, as_json=as_json)


@app.command(rich_help_panel=SPECS, epilog="Example: recipe schema > .taskrecipe.schema.json")
def schema(
    name: Annotated[
        str | None, typer.Argument(help="Only this recipe.", autocompletion=completion.complete_recipes)
    ] = None,
    part: Annotated[
        bool, typer.Option("--part", help="For files that specs extend, such as _base.toml: no key is required.")
    ] = False,
) -> None:
    """Print the JSON Schema of specs, for editors. It includes all installed plugins.

    Name the file in a spec's first line: #:schema .taskrecipe.schema.json
    """
    from taskrecipe.cli.schema import print_schema

    print_schema(name, part=part)


@app.command("list", rich_help_panel=CATALOG)
def list_recipes(as_json: AsJson = False) -> None:
    """List the installed recipes and techniques."""
    from taskrecipe.cli.list_recipes import print_list

    print_list(as_json=as_json)


@app.command(rich_help_panel=CATALOG, epilog="Example: recipe show glue")
def show(
    name: Annotated[
        str,
        typer.Argument(help="A recipe, technique, optimizer, schedule, …", autocompletion=completion.complete_plugins),
    ],
    group: Annotated[
        Literal["recipes", "techniques", "optimizers", "schedules", "callbacks", "trackers"] | None,
        typer.Option(help="Its group, if several groups have that name."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a plugin's description, options and an example; for a recipe also metrics and columns."""
    from taskrecipe.cli.show import show

    show(name, group, as_json=as_json)


@app.command(rich_help_panel=CATALOG)
def plugins(as_json: AsJson = False) -> None:
    """List every plugin: where it comes from, whether it loads, and how long that takes."""
    from taskrecipe.cli.plugins import print_plugins

    print_plugins(as_json=as_json)


@app.command(rich_help_panel=CATALOG, epilog="Example: recipe guide own-recipe")
def guide(
    page: Annotated[
        str | None,
        typer.Argument(
            help="A page, or the code of an error; without one, the pages are listed.",
            autocompletion=completion.complete_pages,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a page of the guide, such as how to write your own recipe, or what the code of an error means."""
    from taskrecipe.cli.guide import guide

    guide(page, as_json=as_json)
