"""Where Python need not look for garbage. Oracle: `gc.isenabled`."""

from __future__ import annotations

import gc

import pytest

from benchmark.garbage import no_collections


def test_no_collections_meanwhile_and_as_before_afterwards() -> None:
    """An error ends it too, and the inner of two does not begin what the outer one has ended."""
    with pytest.raises(ZeroDivisionError), no_collections():
        with no_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()
