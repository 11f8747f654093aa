"""Finding recipes, optimizers, schedules, callbacks and trackers by name, through entry points.

Names are read from package metadata; only the one that is asked for is imported. Built-ins come
through the same door as everybody else's, and nobody takes another's name in silence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import EntryPoint, distributions, version
from typing import TYPE_CHECKING, Any, Literal, cast

from taskrecipe.core.errors import PluginError, RecipeError

if TYPE_CHECKING:
    from taskrecipe.core.plugins import Callback, Optimizer, Schedule, Tracker
    from taskrecipe.core.recipe import Recipe

Group = Literal["recipes", "optimizers", "schedules", "callbacks", "trackers"]
GROUPS: tuple[Group, ...] = ("recipes", "optimizers", "schedules", "callbacks", "trackers")
OWN_DISTRIBUTION = "taskrecipe"


class UnknownNameError(RecipeError):
    """Nothing of that name is installed; `known` is what is."""

    exit_code = 2

    def __init__(self, group: Group, name: str, known: list[str]) -> None:
        self.group, self.name, self.known = group, name, known
        super().__init__(f"no {group[:-1]} is called {name!r}; installed: {', '.join(known) or 'none'}")


class NameClashError(RecipeError):
    """Several distributions own one name; `owners` are the names that tell them apart."""

    exit_code = 2

    def __init__(self, group: Group, name: str, owners: list[str]) -> None:
        self.group, self.name, self.owners = group, name, owners
        super().__init__(
            f"{group[:-1]} {name!r} is registered by {' and by '.join(o.split(':')[0] for o in owners)}; "
            f"say which one is meant: {' or '.join(repr(o) for o in owners)}"
        )


@dataclass(frozen=True)
class Plugin:
    """One entry point and the distribution that brings it."""

    group: Group
    name: str
    distribution: str
    version: str
    target: str
    entry: EntryPoint

    @property
    def full_name(self) -> str:
        """`distribution:name`, which is never ambiguous."""
        return f"{self.distribution}:{self.name}"

    def load(self) -> Any:
        """Import what the entry point names; any failure is the plugin's and says whose."""
        self._require_our_version()
        try:
            loaded = self.entry.load()
        except (Exception, SystemExit) as cause:
            raise PluginError(f"{self.describe()} failed to import: {type(cause).__name__}: {cause}") from cause
        self._require_kind(loaded)
        return loaded

    def describe(self) -> str:
        """Name the plugin in full, for an error message."""
        return f"{self.group[:-1]} {self.name!r} ({self.target}) of {self.distribution} {self.version}"

    def timed_load(self) -> tuple[float, PluginError | None]:
        """Load, and say how many seconds it took and what went wrong."""
        start = time.perf_counter()
        try:
            self.load()
        except PluginError as error:
            return time.perf_counter() - start, error
        return time.perf_counter() - start, None

    def _require_our_version(self) -> None:
        """Refuse what says that it was made for another version of ours: it would fail later, and more strangely."""
        if self.distribution == OWN_DISTRIBUTION or self.entry.dist is None:
            return
        from packaging.requirements import Requirement
        from packaging.utils import canonicalize_name

        ours = version(OWN_DISTRIBUTION)
        for requirement in map(Requirement, self.entry.dist.requires or []):
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            is_ours = canonicalize_name(requirement.name) == OWN_DISTRIBUTION
            if is_ours and applies and not requirement.specifier.contains(ours, prereleases=True):
                raise PluginError(f"{self.describe()} needs {requirement}, and this is {ours}: change one of the two")

    def _require_kind(self, loaded: Any) -> None:
        kind = _kind(self.group)
        if not (isinstance(loaded, type) and issubclass(loaded, kind)):
            raise PluginError(f"{self.describe()} is not a subclass of {kind.__module__}.{kind.__name__}")


class Registry:
    """The plugins of an environment, by group and name."""

    def __init__(self, plugins: list[Plugin]) -> None:
        self.plugins = plugins

    @classmethod
    def read(cls) -> Registry:
        """Read the installed metadata; imports nothing of what it names."""
        plugins = sorted(_read(), key=lambda plugin: (GROUPS.index(plugin.group), plugin.name))
        if os.environ.get("TASKRECIPE_DISABLE_PLUGINS", "") not in ("", "0"):
            plugins = [plugin for plugin in plugins if plugin.distribution == OWN_DISTRIBUTION]
        return cls(plugins)

    def names(self, group: Group) -> list[str]:
        """The names a spec can use in `group`; those with several owners in their full form."""
        return sorted(
            full if len(owners) > 1 else name
            for name, owners in self._by_name[group].items()
            for full in [plugin.full_name for plugin in owners]
        )

    def find(self, group: Group, name: str) -> Plugin:
        """The plugin that `name`, short or full, stands for."""
        by_name = self._by_name[group]
        owners = by_name.get(name) or [p for p in self.plugins if p.group == group and p.full_name == name]
        if not owners:
            raise UnknownNameError(group, name, self.names(group))
        if len(owners) > 1:
            raise NameClashError(group, name, [plugin.full_name for plugin in owners])
        return owners[0]

    def recipe(self, name: str) -> type[Recipe]:
        """Import the recipe called `name`."""
        return cast("type[Recipe]", self._load("recipes", name))

    def optimizer(self, name: str) -> type[Optimizer]:
        """Import the optimizer called `name`."""
        return cast("type[Optimizer]", self._load("optimizers", name))

    def schedule(self, name: str) -> type[Schedule]:
        """Import the schedule called `name`."""
        return cast("type[Schedule]", self._load("schedules", name))

    def callback(self, name: str) -> type[Callback]:
        """Import the callback called `name`."""
        return cast("type[Callback]", self._load("callbacks", name))

    def tracker(self, name: str) -> type[Tracker]:
        """Import the tracker called `name`."""
        return cast("type[Tracker]", self._load("trackers", name))

    def _load(self, group: Group, name: str) -> Any:
        return self.find(group, name).load()

    @cached_property
    def _by_name(self) -> dict[Group, dict[str, list[Plugin]]]:
        table: dict[Group, dict[str, list[Plugin]]] = {group: {} for group in GROUPS}
        for plugin in self.plugins:
            table[plugin.group].setdefault(plugin.name, []).append(plugin)
        return table


@lru_cache(maxsize=1)
def installed() -> Registry:
    """The registry of this environment, read once."""
    return Registry.read()


def _read() -> Iterator[Plugin]:
    """Every entry point of ours; a distribution that mentions none of our groups is not worth parsing."""
    groups = {f"taskrecipe.{group}": group for group in GROUPS}
    seen = set()
    for distribution in distributions():
        if "[taskrecipe." not in (distribution.read_text("entry_points.txt") or ""):
            continue
        owner, version = distribution.name, distribution.version
        for entry in distribution.entry_points:
            group = groups.get(entry.group)
            # An editable install and its build folder can both be on the path; one owner is one owner.
            if group and (group, entry.name, owner) not in seen:
                seen.add((group, entry.name, owner))
                yield Plugin(group, entry.name, owner, version, entry.value, entry)


def _kind(group: Group) -> type:
    from taskrecipe.core import plugins, recipe

    kinds: dict[Group, type] = {
        "recipes": recipe.Recipe,
        "optimizers": plugins.Optimizer,
        "schedules": plugins.Schedule,
        "callbacks": plugins.Callback,
        "trackers": plugins.Tracker,
    }
    return kinds[group]
