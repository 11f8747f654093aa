"""What the results of a run are a function of: spec, rows, learned values, model files, code and versions.

Checkpoints keep it, and `resume_guard` compares it with what a resumed run finds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.code_digest import digest_code
from taskrecipe.data.file_digest import digest_files
from taskrecipe.optional import HasParts
from taskrecipe.plugins.registry import OWN_DISTRIBUTION, Group, Plugin, installed
from taskrecipe.recipe import learned_values
from taskrecipe.run.environment import package_versions

if TYPE_CHECKING:
    from taskrecipe.data.load import Loaded
    from taskrecipe.model import ModelSource
    from taskrecipe.recipe import Recipe
    from taskrecipe.spec.spec import Spec

SMALL_FILES = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".codes")
"""Endings of configuration, vocabulary and processor files. The weights themselves are in every checkpoint."""
WEIGHTS = ".safetensors"


def run_identity(
    spec: Spec, loaded: Loaded, recipe: Recipe, processes: int, other_models: Sequence[ModelSource] = ()
) -> dict[str, Any]:
    """Return what the results are a function of, as JSON values. It reads files: call it once a run, not a checkpoint.

    `recipe` has learned from its rows; `other_models` are those that the recipe or its techniques read besides
    `[model]`, such as a teacher.
    """
    identity = {
        "spec": spec.model_dump(mode="json"),
        "rows": dict(loaded.fingerprint),
        "learned": learned_values(recipe),
        "processes": processes,
        "versions": package_versions(),
        "plugins": describe_plugins(spec, recipe),
        "hub": {
            "data": loaded.commit,
            "model": hub_commit(loaded.source),
            **{f"model {_label(source)}": hub_commit(source) for source in other_models},
        },
        # Techniques may leave weights out of checkpoints, and other models are never in them: those files count too.
        "model_files": {
            **digest_source(loaded.source, weights=bool(spec.techniques)),
            **{
                f"{_label(source)}/{name}": digest
                for source in other_models
                for name, digest in digest_source(source, weights=True).items()
            },
        },
    }
    return dict(json.loads(json.dumps(identity)))  # as it comes out of a checkpoint: tuples are lists, keys are text


def describe_plugins(spec: Spec, recipe: Recipe | None = None) -> dict[str, dict[str, dict[str, str]]]:
    """Return the plugins that a spec uses, by group and name: distribution, version, and a digest of foreign code.

    `recipe` names the recipes within it, where it has parts.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for group, name in _used_names(spec, recipe):
        found.setdefault(group, {})[name] = _describe_plugin(installed().find(group, name))
    return found


def hub_commit(source: ModelSource) -> str | None:
    """Return the hub's commit that a model was read at; None where it is a local folder or a bare configuration."""
    folder = source.folder
    return folder.name if folder is not None and folder.parent.name == "snapshots" else None


def _used_names(spec: Spec, recipe: Recipe | None) -> Iterator[tuple[Group, str]]:
    yield "recipes", spec.recipe
    if isinstance(recipe, HasParts):
        yield from (("recipes", part.spec.recipe) for part in recipe.parts().values())
    yield from (("techniques", technique.name) for technique in spec.techniques)
    yield "optimizers", spec.optimizer.name
    yield "schedules", spec.schedule.name
    yield from (("callbacks", callback.name) for callback in spec.callbacks)
    if spec.track is not None:
        yield "trackers", spec.track.name


def _describe_plugin(plugin: Plugin) -> dict[str, str]:
    described = {"distribution": plugin.distribution, "version": plugin.version}
    if plugin.distribution == OWN_DISTRIBUTION:
        return described
    # A plugin under development changes without a new version.
    return {**described, "code": digest_code(plugin.load().__module__)}


def _label(source: ModelSource) -> str:
    """Name a model without the path of a local folder."""
    return Path(source.name).name if source.name else str(source.type)


def digest_source(source: ModelSource, *, weights: bool) -> dict[str, str]:
    """Return the digest of each file of a model and of its processor: the small ones, and the weights if wanted."""
    endings = (*SMALL_FILES, WEIGHTS) if weights and source.pretrained else SMALL_FILES
    files = {} if source.folder is None else _list_files(source.folder, endings)
    if source.processor is not None:
        files |= {f"processor/{name}": path for name, path in _list_files(source.processor_folder, SMALL_FILES).items()}
    return dict(zip(files, digest_files(list(files.values())), strict=True))


def _list_files(folder: Path, endings: tuple[str, ...]) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and path.name.endswith(endings)}
