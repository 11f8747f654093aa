"""Train models from a TOML file you can review.

    from taskrecipe import train

    run = train("specs/mrpc.toml", set={"train.epochs": 1})
    run.results["best"], run.folder, run.model()

Every public name is listed in `__init__.pyi`, and is imported when it is first used. Helpers for authors of recipes are
in `taskrecipe.data`, `taskrecipe.text` and `taskrecipe.vision`, the conformance kit in `taskrecipe.testing`.
"""

if __name__ != "taskrecipe":
    raise ImportError(f"import this package as 'taskrecipe', not as '{__name__}'")

from taskrecipe.system.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
