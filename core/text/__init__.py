"""Helpers for authors of recipes on text: samples, language modeling, packing, descriptions."""

from taskrecipe.system.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
