"""Pages name each other as docs/NAME.md, as readers of the files need it; on the site these are links."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    parts = re.split(r"(```.*?```|`[^`\n]*`)", markdown, flags=re.S)
    linked = [re.sub(r"(?<![\w/\[])(?<!\]\()docs/(\w+)\.md", r"[docs/\1.md](\1.md)", part) for part in parts[::2]]
    parts[::2] = linked
    return "".join(parts)
