"""Train models from a TOML file you can review.

    from taskrecipe import train

    run = train("specs/mrpc.toml", set={"train.epochs": 1})
    run.results["best"], run.folder, run.model()

Every public name is here, and is imported when it is first used. Helpers for authors of recipes are in
`taskrecipe.data`, `taskrecipe.text` and `taskrecipe.vision`, the conformance kit in `taskrecipe.testing`.
"""

from typing import TYPE_CHECKING

if __name__ != "taskrecipe":
    raise ImportError(f"import this package as 'taskrecipe', not as '{__name__}'")

from taskrecipe.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from taskrecipe.checkpoints.nested_state import keepable
    from taskrecipe.comparison.run_comparison import Comparison, compare
    from taskrecipe.comparison.run_summary import RunSummary
    from taskrecipe.comparison.run_table import list_runs
    from taskrecipe.comparison.spec_differences import SpecDifference, diff_specs
    from taskrecipe.description import DescribedImage, DescribedText, Description, Piece, Shape
    from taskrecipe.errors import (
        DamagedCheckpointError,
        DataError,
        DiskFullError,
        ExportError,
        Interrupted,
        NameClashError,
        NonFiniteError,
        NotReproducedError,
        PluginError,
        RecipeError,
        RunStopped,
        SpecError,
        UnknownNameError,
        UnmetExpectationError,
        UsageError,
    )
    from taskrecipe.model import ModelSource
    from taskrecipe.model_parts import find_heads, find_linear_layers, find_new_weights
    from taskrecipe.optional import (
        ComputesUpdate,
        CutsRows,
        DrawsRows,
        EmbedsRows,
        HasParts,
        SummarizesMetrics,
        WeighsTerms,
    )
    from taskrecipe.plugins.kinds import (
        Callback,
        Compute,
        Computed,
        Effect,
        Group,
        Listener,
        MetricLrFactor,
        Optimizer,
        Schedule,
        Technique,
        Tracker,
    )
    from taskrecipe.plugins.registry import installed
    from taskrecipe.previews.preview import Preview, preview
    from taskrecipe.recipe import (
        IGNORED,
        PREDICT,
        Batch,
        Column,
        Direction,
        Judgment,
        Predictions,
        Recipe,
        Row,
        Scorer,
        Splits,
        evaluated_splits,
        reported_name,
    )
    from taskrecipe.remote.fetch import fetch
    from taskrecipe.report.write import write_report
    from taskrecipe.run.handle import Run
    from taskrecipe.run.train import dry_run, resume, resume_events, train, train_events
    from taskrecipe.spec.spec import Data, Predict, RecipeChoice, Spec
    from taskrecipe.spec.table import Count, HubOrPath, LocalPath, Share, Table, TaskOptions, Text
    from taskrecipe.spec.validation import validate
    from taskrecipe.submission.submit import Submission, submit
    from taskrecipe.sweeps.outcome import SweepOutcome, read_outcome
    from taskrecipe.sweeps.replay import Replay, replay
    from taskrecipe.sweeps.sweep import repeat, sweep
    from taskrecipe.system.optional_packages import require_package
    from taskrecipe.training.control import Control
    from taskrecipe.training.dropout import narrow_rows, use_documents
    from taskrecipe.training.events import Event
    from taskrecipe.training.losses import label_losses
    from taskrecipe.training.update import Update
    from taskrecipe.use.evaluate import RunEvaluation
    from taskrecipe.version import __version__

_MODULES = {
    "taskrecipe.checkpoints.nested_state": ["keepable"],
    "taskrecipe.comparison.run_comparison": ["Comparison", "compare"],
    "taskrecipe.comparison.run_summary": ["RunSummary"],
    "taskrecipe.comparison.run_table": ["list_runs"],
    "taskrecipe.comparison.spec_differences": ["SpecDifference", "diff_specs"],
    "taskrecipe.description": ["DescribedImage", "DescribedText", "Description", "Piece", "Shape"],
    "taskrecipe.errors": [
        "DamagedCheckpointError",
        "DataError",
        "DiskFullError",
        "ExportError",
        "Interrupted",
        "NameClashError",
        "NonFiniteError",
        "NotReproducedError",
        "PluginError",
        "RecipeError",
        "RunStopped",
        "SpecError",
        "UnknownNameError",
        "UnmetExpectationError",
        "UsageError",
    ],
    "taskrecipe.migration.trainer_spec": ["ConvertedSpec", "from_trainer"],
    "taskrecipe.model": ["ModelSource"],
    "taskrecipe.model_parts": ["find_heads", "find_linear_layers", "find_new_weights"],
    "taskrecipe.optional": [
        "ComputesUpdate",
        "CutsRows",
        "DrawsRows",
        "EmbedsRows",
        "HasParts",
        "SummarizesMetrics",
        "WeighsTerms",
    ],
    "taskrecipe.plugins.kinds": [
        "Callback",
        "Compute",
        "Computed",
        "Effect",
        "Group",
        "Listener",
        "MetricLrFactor",
        "Optimizer",
        "Schedule",
        "Technique",
        "Tracker",
    ],
    "taskrecipe.plugins.registry": ["installed"],
    "taskrecipe.previews.preview": ["Preview", "preview"],
    "taskrecipe.recipe": [
        "IGNORED",
        "PREDICT",
        "Batch",
        "Column",
        "Direction",
        "Judgment",
        "Predictions",
        "Recipe",
        "Row",
        "Scorer",
        "Splits",
        "evaluated_splits",
        "reported_name",
    ],
    "taskrecipe.remote.fetch": ["fetch"],
    "taskrecipe.report.write": ["write_report"],
    "taskrecipe.run.handle": ["Run"],
    "taskrecipe.run.train": ["dry_run", "resume", "resume_events", "train", "train_events"],
    "taskrecipe.spec.spec": ["Data", "Predict", "RecipeChoice", "Spec"],
    "taskrecipe.spec.table": ["Count", "HubOrPath", "LocalPath", "Share", "Table", "TaskOptions", "Text"],
    "taskrecipe.spec.validation": ["validate"],
    "taskrecipe.submission.submit": ["Submission", "submit"],
    "taskrecipe.sweeps.outcome": ["SweepOutcome", "read_outcome"],
    "taskrecipe.sweeps.replay": ["Replay", "replay"],
    "taskrecipe.sweeps.sweep": ["repeat", "sweep"],
    "taskrecipe.system.optional_packages": ["require_package"],
    "taskrecipe.training.control": ["Control"],
    "taskrecipe.training.dropout": ["narrow_rows", "use_documents"],
    "taskrecipe.training.events": ["Event"],
    "taskrecipe.training.losses": ["label_losses"],
    "taskrecipe.training.update": ["Update"],
    "taskrecipe.use.evaluate": ["RunEvaluation"],
    "taskrecipe.version": ["__version__"],
}

__all__ = [
    "IGNORED",
    "PREDICT",
    "Batch",
    "Callback",
    "Column",
    "Comparison",
    "Compute",
    "Computed",
    "ComputesUpdate",
    "Control",
    "ConvertedSpec",
    "Count",
    "CutsRows",
    "DamagedCheckpointError",
    "Data",
    "DataError",
    "DescribedImage",
    "DescribedText",
    "Description",
    "Direction",
    "DiskFullError",
    "DrawsRows",
    "Effect",
    "EmbedsRows",
    "Event",
    "ExportError",
    "Group",
    "HasParts",
    "HubOrPath",
    "Interrupted",
    "Judgment",
    "Listener",
    "LocalPath",
    "MetricLrFactor",
    "ModelSource",
    "NameClashError",
    "NonFiniteError",
    "NotReproducedError",
    "Optimizer",
    "Piece",
    "PluginError",
    "Predict",
    "Predictions",
    "Preview",
    "Recipe",
    "RecipeChoice",
    "RecipeError",
    "Replay",
    "Row",
    "Run",
    "RunEvaluation",
    "RunStopped",
    "RunSummary",
    "Schedule",
    "Scorer",
    "Shape",
    "Share",
    "Spec",
    "SpecDifference",
    "SpecError",
    "Splits",
    "Submission",
    "SummarizesMetrics",
    "SweepOutcome",
    "Table",
    "TaskOptions",
    "Technique",
    "Text",
    "Tracker",
    "UnknownNameError",
    "UnmetExpectationError",
    "Update",
    "UsageError",
    "WeighsTerms",
    "__version__",
    "compare",
    "diff_specs",
    "dry_run",
    "evaluated_splits",
    "fetch",
    "find_heads",
    "find_linear_layers",
    "find_new_weights",
    "from_trainer",
    "installed",
    "keepable",
    "label_losses",
    "list_runs",
    "narrow_rows",
    "preview",
    "read_outcome",
    "repeat",
    "replay",
    "reported_name",
    "require_package",
    "resume",
    "resume_events",
    "submit",
    "sweep",
    "train",
    "train_events",
    "use_documents",
    "validate",
    "write_report",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
