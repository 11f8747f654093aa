"""Find recipes, techniques, optimizers, schedules, callbacks and trackers by name, through entry points.

Names are read from package metadata. Only the plugin that is asked for is imported. Built-in plugins are registered
like all others, and a name that two distributions registered is never taken from one of them silently.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, cast

from taskrecipe.errors import NameClashError, PluginError, UnknownNameError
from taskrecipe.plugins.entry_points import read_entry_points

if TYPE_CHECKING:
    from taskrecipe.plugins.kinds import Callback, Optimizer, Schedule, Technique, Tracker
    from taskrecipe.recipe import Recipe

Group = Literal["recipes", "techniques", "optimizers", "schedules", "callbacks", "trackers"]
GROUPS: tuple[Group, ...] = ("recipes", "techniques", "optimizers", "schedules", "callbacks", "trackers")
OWN_DISTRIBUTION = "taskrecipe"
CONTRACT = 1
"""The version of the contract between this project and plugins: the classes of the door that they inherit from."""
OLDEST_CONTRACT = 1
"""The oldest version that plugins may follow."""
_CONTRACT_GROUP = "taskrecipe.contract"
"""The entry points by which a package says which version it follows: the name is the version."""


@dataclass(frozen=True)
class Plugin:
    """One entry point and the distribution that registers it."""

    group: Group
    name: str
    distribution: str
    version: str
    target: str
    """The module and the class in it, as `module:class`."""
    contract: str | None = None
    """The version of the contract that its package follows; None if the package doesn't say."""

    @property
    def full_name(self) -> str:
        """Return `distribution:name`, which is never ambiguous."""
        return f"{self.distribution}:{self.name}"

    def load(self) -> Any:
        """Import the plugin's class. Any failure becomes a `PluginError` that names the plugin."""
        self._require_our_version()
        self._require_our_contract()
        if not self.is_own:
            from taskrecipe.plugins.isolation import announce_plugin

            announce_plugin(self.describe())
        try:
            loaded = self._import()
        except self._failures as cause:
            raise PluginError(f"{self.describe()} failed to import: {type(cause).__name__}: {cause}") from cause
        self._require_kind(loaded)
        return loaded

    def _import(self) -> Any:
        module, _, name = self.target.partition(":")
        if self.is_own:
            return attrgetter(name)(import_module(module))
        with redirect_stdout(sys.stderr):  # what a plugin prints must not get into our JSON
            return attrgetter(name)(import_module(module))

    @property
    def is_own(self) -> bool:
        """Whether the plugin is one of this project."""
        return self.distribution == OWN_DISTRIBUTION

    @property
    def _failures(self) -> tuple[type[BaseException], ...]:
        """What counts as a failed import: of a foreign plugin everything, as it may raise even KeyboardInterrupt."""
        return (Exception,) if self.is_own else (BaseException,)

    def describe(self) -> str:
        """Return the plugin's full description, for an error message."""
        return f"{self.group[:-1]} {self.name!r} ({self.target}) of {self.distribution} {self.version}"

    def time_load(self) -> tuple[float, PluginError | None]:
        """Load the plugin; return the seconds it took, and the error if it failed."""
        start = time.perf_counter()
        try:
            self.load()
        except PluginError as error:
            return time.perf_counter() - start, error
        return time.perf_counter() - start, None

    def _require_our_version(self) -> None:
        """Refuse a plugin made for another version of taskrecipe now: later it would fail in a less clear way."""
        if not self.is_own and (unmet := _unmet_requirement(self.distribution, tuple(sys.path))):
            raise PluginError(f"{self.describe()} needs {unmet} is installed")

    def _require_our_contract(self) -> None:
        """Refuse a plugin that follows a version of the contract that this project doesn't keep."""
        if self.contract is None:
            return
        known = f"{OLDEST_CONTRACT} to {CONTRACT}" if OLDEST_CONTRACT < CONTRACT else str(CONTRACT)
        found = (
            f"{self.describe()} follows version {self.contract} of the contract; this {OWN_DISTRIBUTION} keeps {known}"
        )
        if not self.contract.isdecimal():
            raise PluginError(f"{found}: the name in its entry point of [{_CONTRACT_GROUP}] must be a number")
        if int(self.contract) > CONTRACT:
            raise PluginError(f"{found}: upgrade {OWN_DISTRIBUTION}")
        if int(self.contract) < OLDEST_CONTRACT:
            raise PluginError(f"{found}: upgrade {self.distribution}")

    def _require_kind(self, loaded: Any) -> None:
        kind = _kind(self.group)
        if not (isinstance(loaded, type) and issubclass(loaded, kind)):
            raise PluginError(f"{self.describe()} is not a subclass of {kind.__module__}.{kind.__name__}")


class Registry:
    """The plugins of a Python environment, by group and name."""

    def __init__(self, plugins: list[Plugin]) -> None:
        self.plugins = plugins

    @classmethod
    def read(cls) -> Registry:
        """Read the metadata of all installed distributions. No plugin is imported."""
        plugins = sorted(_read(), key=lambda plugin: (GROUPS.index(plugin.group), plugin.name))
        if os.environ.get("TASKRECIPE_DISABLE_PLUGINS", "") not in ("", "0"):
            plugins = [plugin for plugin in plugins if plugin.is_own]
        return cls(plugins)

    def names(self, group: Group) -> list[str]:
        """Return the names that a spec can use; a name of several distributions in its full form."""
        return sorted(
            full if len(owners) > 1 else name
            for name, owners in self._by_name[group].items()
            for full in [plugin.full_name for plugin in owners]
        )

    def find(self, group: Group, name: str) -> Plugin:
        """Return the plugin called `name`, which may be short or full."""
        owners = self._by_name[group].get(name) or self._by_full_name[group].get(name)
        if not owners:
            raise UnknownNameError(group, name, self.names(group))
        if len(owners) > 1:
            raise NameClashError(group, name, [plugin.full_name for plugin in owners])
        return owners[0]

    def recipe(self, name: str) -> type[Recipe]:
        """Import the recipe called `name`."""
        return cast("type[Recipe]", self._load("recipes", name))

    def technique(self, name: str) -> type[Technique]:
        """Import the technique called `name`."""
        return cast("type[Technique]", self._load("techniques", name))

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
        return self._index(lambda plugin: plugin.name)

    @cached_property
    def _by_full_name(self) -> dict[Group, dict[str, list[Plugin]]]:
        return self._index(lambda plugin: plugin.full_name)

    def _index(self, name_of: Callable[[Plugin], str]) -> dict[Group, dict[str, list[Plugin]]]:
        table: dict[Group, dict[str, list[Plugin]]] = {group: {} for group in GROUPS}
        for plugin in self.plugins:
            table[plugin.group].setdefault(name_of(plugin), []).append(plugin)
        return table


def ask_plugins(plugins: Sequence[Plugin], ask: Callable[[Plugin], Any]) -> list[Any | PluginError]:
    """Return `ask(plugin)` of each plugin, as JSON values, or why it failed.

    Foreign plugins are asked in other processes: one that hangs or exits is named and ends nothing else.
    """
    from taskrecipe.plugins.isolation import Failure, run_isolated

    # First, so that the other processes start with everything imported, and wait for nothing but their plugins.
    known: dict[int, Any] = {id(plugin): ask(plugin) for plugin in plugins if plugin.is_own}
    foreign = [plugin for plugin in plugins if not plugin.is_own]
    answers = run_isolated(foreign, ask, group=lambda plugin: plugin.target.partition(":")[0])
    known |= {
        id(plugin): PluginError(f"{plugin.describe()} {answer.reason}") if isinstance(answer, Failure) else answer
        for plugin, answer in zip(foreign, answers, strict=True)
    }
    return [known[id(plugin)] for plugin in plugins]


def find_broken_plugins(registry: Registry) -> dict[Plugin, PluginError]:
    """Return the foreign plugins that can't be loaded, and why. They are loaded in other processes."""
    foreign = [plugin for plugin in registry.plugins if not plugin.is_own]
    answers = ask_plugins(foreign, _load_error)
    return {
        plugin: PluginError(answer) if isinstance(answer, str) else answer
        for plugin, answer in zip(foreign, answers, strict=True)
        if answer is not None
    }


def _load_error(plugin: Plugin) -> str | None:
    _, error = plugin.time_load()
    return str(error) if error else None


@cache
def _unmet_requirement(distribution: str, _path: tuple[str, ...]) -> str | None:
    """Return which version of taskrecipe a distribution needs, if it is not the installed one.

    Reading metadata is slow, and a distribution may have a thousand plugins. `_path` is where it is looked for.
    """
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        needed = [Requirement(text) for text in requires(distribution) or []]
    except (PackageNotFoundError, InvalidRequirement, ValueError):  # ValueError: it has no name
        return None
    ours = _own_version()
    for requirement in needed:
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        is_ours = canonicalize_name(requirement.name) == OWN_DISTRIBUTION
        if is_ours and applies and not requirement.specifier.contains(ours, prereleases=True):
            return f"{requirement}, but {OWN_DISTRIBUTION} {ours}"
    return None


@lru_cache(maxsize=1)
def _own_version() -> str:
    """Return the installed version of this project. Its metadata holds the whole README, and is read once."""
    from importlib.metadata import version

    return version(OWN_DISTRIBUTION)


@lru_cache(maxsize=1)
def installed() -> Registry:
    """Return the registry of this environment, which is read once."""
    return Registry.read()


def _read() -> Iterator[Plugin]:
    """Yield every plugin of our groups."""
    groups = {f"taskrecipe.{group}": group for group in GROUPS}
    seen = set()
    entries = list(read_entry_points("taskrecipe."))
    contracts = {entry.distribution: entry.name for entry in entries if entry.group == _CONTRACT_GROUP}
    for entry in entries:
        group = groups.get(entry.group)
        # An editable install and its build folder can both be on the path.
        if group and (key := (group, entry.name, entry.distribution)) not in seen:
            seen.add(key)
            contract = contracts.get(entry.distribution)
            yield Plugin(group, entry.name, entry.distribution, entry.version, entry.target, contract)


def _kind(group: Group) -> type:
    from taskrecipe import recipe
    from taskrecipe.plugins import kinds as plugins

    kinds: dict[Group, type] = {
        "recipes": recipe.Recipe,
        "techniques": plugins.Technique,
        "optimizers": plugins.Optimizer,
        "schedules": plugins.Schedule,
        "callbacks": plugins.Callback,
        "trackers": plugins.Tracker,
    }
    return kinds[group]
