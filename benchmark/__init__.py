"""The experiment: streams of domains, growing models, methods under one budget, and records."""

__version__ = "0.1.0"
