"""A mkdocs hook that replaces links out of docs/, to the README or to code, by their text.

Such links work when the repository is browsed as files. The site does not contain those files.
"""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)\s#]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page without links to files outside the site."""
    docs = Path(config["docs_dir"]).resolve()
    here = Path(page.file.abs_src_path).parent

    def without(link: re.Match[str]) -> str:
        target = link["target"]
        if re.match(r"[a-z]+:", target) or (here / target).resolve().is_relative_to(docs):
            return link[0]
        return link["text"]

    return _LINK.sub(without, markdown)
