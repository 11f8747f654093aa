"""What a caller asks for: a spec to train, a run to resume, or a dry run. It can be sent to other processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from taskrecipe.errors import UsageError
from taskrecipe.run.folder_names import SPEC
from taskrecipe.run.pause import Pause
from taskrecipe.spec.resolve import Resolved, resolve

Kind = Literal["train", "resume", "dry"]
Settings = Mapping[str, Any] | Sequence[str]
"""Values that replace those of a spec: {"train.epochs": 1}, or "train.epochs=1" as on the command line."""


@dataclass(frozen=True)
class Request:
    """One call of `train`, `resume` or `dry_run`."""

    kind: Kind
    path: str
    """The spec; for `resume`, the run's folder."""
    sets: tuple[str, ...] = ()
    out: str | None = None
    sample: bool = False
    allow: tuple[str, ...] = ()
    """Keys whose changes are accepted when a run is resumed."""
    continues: bool = False
    """Whether to resume the run in the folder if there is one, and to start it if not."""
    pause: Pause | None = None
    """When the run pauses, to be resumed later."""
    copy_of: str | None = None
    """The file that `path` is a resolved copy of: its values are said to come from where the copy says."""

    @classmethod
    def make(cls, kind: Kind, path: str | Path, *, set: Settings, processes: int | None, **more: Any) -> Request:
        """Make a request from the arguments of a public function."""
        sets = [*as_assignments(set), *([f"launch.processes={processes}"] if processes else [])]
        return cls(kind, str(path), tuple(sets), **more)

    def resolve(self, *, sample: bool = False) -> Resolved:
        """Read and validate the spec that is asked for."""
        if self.kind != "resume":
            resolved = resolve(Path(self.path), self.sets, sample or self.sample)
            if self.copy_of is not None:
                return replace(resolved, path=Path(self.copy_of), copied=Path(self.path).read_text("utf-8"))
            if resolved.spec.sweep is not None:
                raise UsageError(f"{self.path} has a table [sweep]: search with `recipe sweep {self.path}`")
            return resolved
        spec = Path(self.path) / SPEC
        if not spec.exists():
            raise UsageError(
                f"{self.path} has no {SPEC}: no training has started there; "
                f"start with `recipe run SPEC --out {self.path}`"
            )
        return resolve(spec, self.sets)

    def to_json(self) -> str:
        """Return the request as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        """Make the request that `to_json` returned."""
        values = json.loads(text)
        request = cls(**values)
        pause = Pause.from_json(values["pause"]) if values["pause"] else None
        return replace(request, sets=tuple(request.sets), allow=tuple(request.allow), pause=pause)


def as_assignments(settings: Settings) -> list[str]:
    """Return settings as `KEY=VALUE` with TOML values."""
    if not isinstance(settings, Mapping):
        return list(settings)
    return [f"{key}={_as_toml(value)}" for key, value in settings.items()]


def _as_toml(value: Any) -> str:
    import tomlkit

    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, Mapping):
        pairs = (f"{tomlkit.key(str(key)).as_string()} = {_as_toml(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_as_toml(item) for item in value)}]"
    return str(tomlkit.item(value).as_string())
