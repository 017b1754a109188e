"""Parts of a program that make no garbage, and need not wait for Python to look for some."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """No search for cycles of objects meanwhile: each walks over all that live, and counts of references free the rest.

    What they leave counts as old: it is not walked over at once, only when a search goes over all that lives.

    For code that makes many objects without cycles, of one thread: another's would begin and end with this one's.
    """
    were_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if were_on:
            gc.freeze()
            gc.unfreeze()  # to the oldest generation
            gc.enable()
