"""Rows: where they come from and how they are checked. The names below are for authors of recipes."""

from taskrecipe.system.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
