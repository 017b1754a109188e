"""Where Python need not look for garbage. Oracles: what `gc` itself says."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest

from benchmark.garbage import no_collections
from benchmark.jobs import dry_run, status
from benchmark.jobs.states import RunState
from tests.support.slurm_lab import Lab, write_texts


def test_no_collections_meanwhile_and_as_before_afterwards() -> None:
    """An error ends it too, and the inner of two does not begin what the outer one has ended."""
    with pytest.raises(ZeroDivisionError), no_collections():
        with no_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()


def test_what_was_made_meanwhile_is_old_and_its_cycles_are_still_found() -> None:
    """Oracles: the generation that Python has it in, and a weak reference."""

    class Made:
        itself: object

    with no_collections():
        kept, lost = Made(), Made()
        lost.itself = lost
        left = weakref.ref(lost)
        del lost
    assert any(one is kept for one in gc.get_objects(generation=2)), "no search walks over it at once"
    assert left() is not None
    gc.collect()
    assert left() is None


@pytest.mark.parametrize("command", [["status"], ["run", "--dry-run"]], ids=" ".join)
def test_none_while_the_text_of_a_plan_is_made(command: list[str], tmp_path, monkeypatch) -> None:
    """Oracle: `gc.isenabled`, asked by what makes the first line of both."""
    write_texts(tmp_path)
    lab, asked = Lab(tmp_path / "lab", tmp_path).write('{ method = "naive" }'), []

    def line(states: Sequence[RunState]) -> str:
        asked.append(gc.isenabled())
        return ""

    for module in (status, dry_run):
        monkeypatch.setattr(module, "sweep_line", line)
    assert lab.call(*command) == 0 and asked == [False] and gc.isenabled()
