"""The site: its navigation is the list of docs/index.md, and files outside of docs/ are links into the repository."""

import posixpath
import re
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Make the navigation from docs/index.md: its sections and links, pages of a folder as a group."""
    docs = Path(config.docs_dir)
    config.nav = ["index.md"]
    for section in (docs / "index.md").read_text().split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        entries: dict[str, list[str | dict[str, str]]] = {}
        for text, path in re.findall(r"\[([^\]]+)\]\(((?!\.\./)[^)#]+\.md)\)", body):
            folder = posixpath.dirname(path)
            page = {text[0].upper() + text[1:]: path}
            entries.setdefault(folder or path, []).append(page)
            if folder == "decisions":
                entries[folder] += sorted(each.relative_to(docs).as_posix() for each in docs.glob("decisions/0*.md"))
        groups = [pages[0] if len(pages) == 1 else {next(iter(pages[0])): pages} for pages in entries.values()]
        config.nav.append({title: groups})
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Replace links that leave docs/, so that they work on GitHub and on the site."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def absolute(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        return link[0] if path.startswith("docs/") else f"]({config.repo_url}/blob/main/{path}{link[2] or ''})"

    return re.sub(r"\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)", absolute, markdown)
