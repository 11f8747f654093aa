"""What a run's folder records about it: the conditions and the spec at the start, warnings, and why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.errors import RecipeError
from taskrecipe.remote.urls import is_url
from taskrecipe.run.device import describe_device
from taskrecipe.run.environment import describe_environment, describe_spec_folder
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import ENVIRONMENT, RESULTS, SPEC
from taskrecipe.run.results import describe_progress
from taskrecipe.spec.resolve import Resolved
from taskrecipe.system.tracebacks import keep_traceback
from taskrecipe.training.events import About, End, Warned

if TYPE_CHECKING:
    from accelerate import Accelerator

    from taskrecipe.training.state import Progress


class RunRecord:
    """Writes `environment.json`, `spec.toml`, and lines of the log that are no events of the loop."""

    def __init__(self, resolved: Resolved, folder: RunFolder, accelerator: Accelerator) -> None:
        self.resolved, self.spec, self.folder, self.accelerator = resolved, resolved.spec, folder, accelerator
        # It runs git, so it is done in the background while data and model are loaded.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="environment")
        self._environment = self._thread.submit(self._describe_environment)

    def close(self) -> None:
        """End what is done in the background."""
        self._thread.shutdown()

    def _describe_environment(self) -> dict[str, Any]:
        given = [[paths] if isinstance(paths, str) else paths for paths in self.spec.data.files.values()]
        files = [self.resolved.path, *(Path(path) for paths in given for path in paths if not is_url(path))]
        engine = ["deepspeed"] if self.spec.launch.engine == "deepspeed" else []
        return describe_environment(
            self.resolved.path.parent, files=files, packages=engine, processes=self.accelerator.num_processes
        )

    def write_start(self, identity: Mapping[str, Any], step: int) -> int:
        """Write what the run is made of, and remove from the log what comes after `step`, from which it goes on.

        Return how many damaged lines were removed from the log too.
        """
        import torch

        lost = self.folder.drop_log_after(step if step else -1)
        about = {
            "threads": torch.get_num_threads(),
            **describe_spec_folder(self.resolved.folder, self.folder.path),
            "data": identity["rows"],
            **{key: identity[key] for key in ("plugins", "hub", "model_files")},
        }
        self.folder.write_json(ENVIRONMENT, {**self._environment.result(), **about})
        # After the environment, which names the folder that the spec's paths are relative to.
        kept = self.folder.path / SPEC
        same_file = self.resolved.path.resolve() == kept.resolve()
        self.folder.write_text(SPEC, self.resolved.to_toml(kept.read_text("utf-8") if same_file else None))
        return lost

    def log_start(self, step: int, facts: Mapping[str, str]) -> None:
        """Log the facts that the console printed before there was a log."""
        device = describe_device(self.accelerator, self.spec.train.precision)
        self.folder.log(About(step, {"device": device, **facts}).timed_record())

    def log_warning(self, step: int, message: str) -> None:
        """Log a warning that is no event of the loop."""
        self.folder.log(Warned(step, message).timed_record())

    def write_failure(self, progress: Progress, error: Exception) -> None:
        """Record that a run which had started has failed."""
        message = str(error) or type(error).__name__
        if not isinstance(error, RecipeError):
            keep_traceback(error, self.folder.path)
        self.folder.log(End(progress.step, "failed", message).timed_record())
        about = {"name": self.folder.name, "recipe": self.spec.recipe, "error": message}
        self.folder.write_json(RESULTS, {"status": "failed", **about, **describe_progress(progress)})
