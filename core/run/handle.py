"""`Run`: a run's folder as an object, while it trains and after it has ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import RESULTS, SPEC
from taskrecipe.run.request import Settings, as_assignments

if TYPE_CHECKING:
    import torch

    from taskrecipe.export.export import Exported, Form
    from taskrecipe.recipe import Recipe
    from taskrecipe.spec.spec import Spec
    from taskrecipe.use.evaluate import RunEvaluation
    from taskrecipe.use.trained import Trained


class Run:
    """A run in its folder. Nothing is read before it is asked for."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = RunFolder.open(Path(folder)).path
        self._loaded: tuple[Any, Trained] | None = None

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """Show the run in a notebook: how it ended, its metrics and its curves."""
        from taskrecipe.report.notebook import render_run

        return render_run(self.folder)

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return self.folder.name

    @property
    def results(self) -> dict[str, Any]:
        """The content of results.json; empty while the run is still training."""
        path = self.folder / RESULTS
        return dict(json.loads(path.read_bytes())) if path.exists() else {}

    @property
    def log(self) -> Iterator[dict[str, Any]]:
        """Every record of log.jsonl."""
        return RunFolder.open(self.folder).read_log()

    @cached_property
    def spec(self) -> Spec:
        """The spec that the run was made from, with every default filled in."""
        from taskrecipe.spec.resolve import resolve

        return resolve(self.folder / SPEC).spec

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe with its processor and what it learned, ready to predict with `model()`."""
        from taskrecipe.run.export import load_recipe

        return load_recipe(self.spec, self.folder / "model")

    def evaluate(
        self,
        *,
        at: str = "best",
        split: str | None = None,
        data: str | Path | Sequence[str | Path] | None = None,
        by: str | None = None,
    ) -> RunEvaluation:
        """Evaluate the run's weights as in training; or on another split; or on files.

        `at` is best, last or step-N. With `by`, rows are also evaluated by the values of that column. The result says
        whether the metrics are equal to the logged ones.
        """
        from taskrecipe.use.evaluate import evaluate_run

        return evaluate_run(self.folder, at=at, split=split, data=data, by=by)

    def report(self, out: str | Path | None = None) -> Path:
        """Write a report of the run, by default into its folder, and return its path."""
        from taskrecipe.report.write import write_report

        return write_report([self.folder], out)

    def predict(
        self,
        rows: Iterable[Mapping[str, Any]] | str | Path,
        *,
        at: str = "best",
        set: Settings = (),
        batch_size: int | None = None,
        task: str | None = None,
        skip_bad: bool = False,
    ) -> list[Any]:
        """Return the answer for each row. Rows are dictionaries, a data set, or a file that `recipe predict` takes.

        `set` replaces values of `[predict]`: {"predict.max_new_tokens": 20}. `task` names one of several tasks. A row
        that can't be used is an error; with `skip_bad`, its answer is None.
        """
        from taskrecipe.use.predict import Plan, predict_rows

        plan = Plan(self.folder, at, tuple(as_assignments(set)), batch_size, task, skip_bad=skip_bad)
        return list(predict_rows(self.load(at, set=set), rows, plan))

    def load(self, at: str = "best", *, set: Settings = ()) -> Trained:
        """Load the recipe and the model at `best`, `last` or `step-N`. They are kept for the next call."""
        from taskrecipe.use.trained import load_trained

        wanted = at, tuple(as_assignments(set))
        if self._loaded is None or self._loaded[0] != wanted or at == "last":
            self._loaded = None  # the former one needs memory too
            self._loaded = wanted, load_trained(self.folder, at, tuple(as_assignments(set)))
        return self._loaded[1]

    def model(self) -> torch.nn.Module:
        """Load the exported model: the best weights, in evaluation mode."""
        from taskrecipe.run.export import load_exported_model

        return load_exported_model(self.recipe, self.folder / "model")

    def export(self, to: Form, folder: str | Path | None = None, **options: Any) -> Exported:
        """Write the model in another form, `hf` or `onnx`, or upload it to the `hub`; the outputs are compared first.

        Without `folder` it is written into the run's folder. Options: `tolerance`, `force`, and for the hub `repo` and
        `private`.
        """
        from taskrecipe.export.export import export_run

        return export_run(self, to, folder, **options)
