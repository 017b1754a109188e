"""Writes analysis/vega_lite_bundle.js, the library that draws in reports, from the package vl-convert-python.

pip install vl-convert-python==1.9.0.post1 && python -m tests.tools.bundle_vega

It takes seconds and 84 MB of a package to bundle 0.9 MB, so that is done once and here, and no report needs it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

FILE = Path(__file__).parents[2] / "analysis" / "vega_lite_bundle.js"


def main() -> None:
    notice, _, _ = FILE.read_text(encoding="utf-8").partition("*/\n")
    bundle = import_module("vl_convert").javascript_bundle()
    FILE.write_text(f"{notice}*/\n{bundle}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
