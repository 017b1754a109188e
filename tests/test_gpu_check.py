"""The parts of `make gpu-check` that work without a GPU: on the tests' stand-in for a device, and
with results written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support import other_device
from tests.support.thorough import only_thorough
from tests.tools import gpu_check
from tests.tools.gpu_check import BEGIN, END, PARTS, TINY, do_in_a_process, write_table


def test_a_part_is_a_process_on_the_device_and_has_a_limit(tmp_path: Path) -> None:
    """By hand: the stand-in is the device; no interpreter starts within a millisecond; no part is
    called `nothing`.
    """
    here = do_in_a_process("machine", tmp_path, True, 300)
    assert here["device"] == other_device.NAME and "a stand-in that is no GPU" in here["said"]
    late, unknown = (
        do_in_a_process("kills", tmp_path, True, 0.001),
        do_in_a_process("nothing", tmp_path, True, 300),
    )
    assert not late["ok"] and late["error"].endswith(" 0 s")
    assert not unknown["ok"] and unknown["error"] == "KeyError: 'nothing'"


def test_the_memory_of_a_step_is_computed_beside_its_peak(tmp_path: Path) -> None:
    """Oracle: the parameters of an OLMo 2 of these sizes by hand, with 16 bytes each for weights,
    gradients and two moments. The stand-in counts no peak.
    """
    figures = do_in_a_process("memory", tmp_path, True, 300)
    attention = 4 * 64 * 64 + 2 * 64
    layer = attention + 3 * 64 * 96 + 2 * 64
    parameters = 2 * layer + 64 + 2 * 300 * 64
    assert figures["ok"] and figures["peak"] is None
    assert 16 * parameters < figures["computed"] < 20 * parameters


def test_the_table_has_a_column_for_each_machine(tmp_path: Path) -> None:
    """Oracle: by hand. Text around the table stays, and a second write changes nothing."""
    parts = {"machine": {"said": "1 T4"}, "kills": {"ok": True, "said": "weights | differ by 0"}}
    (tmp_path / "t4.json").write_text(json.dumps(parts))
    second = {"machine": {"said": "8 H100"}, "compile": {"ok": False, "error": "no gcc\nat all"}}
    (tmp_path / "h100.json").write_text(json.dumps(second))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    for _ in range(2):
        write_table(page, tmp_path)
        lines = page.read_text().splitlines()
        assert (lines[0], lines[-1]) == ("before", "after")
        assert lines[2:5] == [
            "|  | h100 | t4 |",
            "| :-- | :-- | :-- |",
            "| machine | 8 H100 | 1 T4 |",
        ]
        assert (
            "| kills |  | weights / differ by 0 |" in lines and "| compile | no gcc |  |" in lines
        )


def test_all_parts_together_take_eight_minutes_at_most() -> None:
    """The oracle is docs/slurm_and_gpus.md, which says eight minutes at most."""
    assert sum(most for _, most in PARTS.values()) <= 480


@only_thorough
def test_all_parts_run_on_the_device_of_tests(tmp_path: Path, monkeypatch) -> None:
    """Oracle: the tolerances of each part. The file of results holds all parts."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(
        gpu_check, "PARTS", {name: (part, 3600.0) for name, (part, _) in PARTS.items()}
    )
    assert TINY.layers == 1
    parts = gpu_check.check("here", True, tmp_path)
    assert all(parts[name]["ok"] for name in PARTS), parts
    assert json.loads((tmp_path / "here.json").read_text()) == parts
