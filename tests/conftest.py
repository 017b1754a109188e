"""What several tests build on: a tiny corpus, tiny runs. Everything is made here; nothing is read from elsewhere."""

from __future__ import annotations
