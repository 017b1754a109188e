"""Language models and how they grow."""

from benchmark.models.transformer import LanguageModel, build, load

__all__ = ["LanguageModel", "build", "load"]
