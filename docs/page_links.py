"""Pages name others as docs/NAME.md and figures as ../results/...png; on the site these are links and copies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

FIGURE = re.compile(r"\(\.\./(results/[\w/]+\.png)\)")


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs once: figures of studies lie outside its folder."""
    named = {name for page in files.documentation_pages() for name in FIGURE.findall(page.content_string)}
    for name in sorted(named):
        files.append(File.generated(config, name, abs_src_path=str(Path(config.docs_dir).parent / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    parts = re.split(r"(```.*?```|`[^`\n]*`)", FIGURE.sub(r"(\1)", markdown), flags=re.S)
    linked = [re.sub(r"(?<![\w/\[])(?<!\]\()docs/(\w+)\.md", r"[docs/\1.md](\1.md)", part) for part in parts[::2]]
    parts[::2] = linked
    return "".join(parts)
