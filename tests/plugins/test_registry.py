"""What holds for every optimizer, schedule, callback and tracker that comes with the project."""

import subprocess
import sys

import pytest
from transformers.trainer_utils import SchedulerType

from taskrecipe.plugins import registry
from taskrecipe.plugins.registry import installed

REGISTRY = installed()
OWN = [
    plugin
    for plugin in REGISTRY.plugins
    if plugin.distribution == "taskrecipe" and plugin.group in ("optimizers", "schedules", "callbacks", "trackers")
]


def test_every_schedule_of_transformers_is_there():
    assert {kind.value for kind in SchedulerType} <= set(REGISTRY.names("schedules"))


@pytest.mark.parametrize("plugin", OWN, ids=lambda plugin: f"{plugin.group}-{plugin.name}")
def test_every_key_is_described(plugin):
    table = plugin.load()
    assert table.__doc__
    assert [name for name, field in table.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("plugin", OWN, ids=lambda plugin: f"{plugin.group}-{plugin.name}")
def test_unknown_keys_are_refused(plugin):
    with pytest.raises(ValueError, match="no_such_key"):
        plugin.load().model_validate({"name": plugin.name, "no_such_key": 1})


def test_tables_are_light_to_import_and_to_validate():
    script = """
import sys
from taskrecipe.plugins import registry
from taskrecipe.plugins.registry import installed
registry = installed()
for plugin in registry.plugins:
    if plugin.distribution == "taskrecipe" and plugin.group != "recipes":
        plugin.load()
registry.optimizer("galore").model_validate({"name": "galore", "rank": 4})
registry.schedule("cosine").model_validate({"name": "cosine", "warmup": 0.1})
registry.callback("time_limit").model_validate({"name": "time_limit", "minutes": 1.0}).build()
registry.tracker("wandb").model_validate({"name": "wandb"})
heavy = {"torch", "transformers", "datasets", "accelerate", "evaluate", "numpy", "bitsandbytes", "galore_torch"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_our_own_metadata_is_read_once_for_many_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the whole README: reading it for each of a thousand distributions took most of the time of a list."""
    from importlib import metadata

    asked: list[str] = []
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: asked.append(name) or real(name))
    monkeypatch.setattr(metadata, "requires", lambda name: ["taskrecipe"])
    registry._own_version.cache_clear()
    for number in range(100):
        assert registry._unmet_requirement(f"made-up-{number}", ()) is None
    assert asked == ["taskrecipe"]
