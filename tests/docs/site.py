"""Build the documentation site from the Markdown of the repository: `make docs`.

The pages stay readable as plain files: their links name files of the repository. This module copies them into
`build/docs` with links that fit the site, runs the generator, and checks the result: every link leads somewhere, and no
page loads anything from another host. It runs in `.venv-docs`, without the hub.
"""

from __future__ import annotations

import html.parser
import itertools
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
STAGED = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
SETTINGS = ROOT / "mkdocs.yml"

OUTSIDE = {
    "README.md": "index.md",
    "DESIGN.md": "design.md",
    "RELIABILITY.md": "reliability.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "SECURITY.md": "security-policy.md",
    "examples/README.md": "examples.md",
}
"""Pages that are not below docs/, and their place in the site."""
ICON = ROOT / "src" / "isthmus" / "frontends" / "console" / "static" / "icon.svg"
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".yaml": "yaml", ".service": "ini"}
NOT_FOUND_BY_SEARCH = "---\nsearch:\n  exclude: true\n---\n\n"
LOADING = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
"""Elements that load something, and the attribute that says what. `link` loads by its `rel`."""
LOADING_RELS = frozenset({"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch"})

_FENCE = re.compile(r"^( *)(```+).*?^\1\2$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
_CSS_LOAD = re.compile(r"""(?:url\(\s*['"]?|@import\s+['"])((?:https?:)?//[^'")\s]+)""")


def pages() -> dict[str, str]:
    """Every page of the repository that the site has, by its path, with its place in the site."""
    below = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    placed = {path: path.removeprefix("docs/").replace("README.md", "index.md") for path in below}
    return OUTSIDE | placed


def with_links_of_the_site(text: str, page: str, placed: dict[str, str], sources: set[str]) -> str:
    """A page's text with its links changed to fit the site.

    A link to a file that is no page leads to a page that shows it; those files are added to `sources`. A link to a
    folder becomes plain text.
    """

    def change(found: re.Match[str]) -> str:
        before, address, after = found.groups()
        name, mark, anchor = address.partition("#")
        if not name or re.match(r"[a-z]+:", address):
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), name))
        if (ROOT / target).is_dir():
            return before[before.index("[") + 1 : -2]
        place = placed.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if place is None:
            sources.add(target)
            place = f"files/{target}.md"
        return f"{before}{posixpath.relpath(place, posixpath.dirname(placed[page]))}{mark}{anchor}{after}"

    at, pieces = 0, []
    for fence in _FENCE.finditer(text):
        pieces += [_LINK.sub(change, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, _LINK.sub(change, text[at:])])


def stage(folder: Path) -> None:
    """Write the site's sources into a folder that does not exist yet."""
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.md", "overrides"))
    placed = pages()
    sources: set[str] = set()
    for page, place in placed.items():
        text = with_links_of_the_site((ROOT / page).read_text(encoding="utf-8"), page, placed, sources)
        _write(folder / place, text)
    shutil.copy(ROOT / "docs" / "overrides" / "site.css", folder)
    shutil.copy(ICON, folder / "images")
    for source in sorted(sources):
        language = LANGUAGES.get(Path(source).suffix, "text")
        body = (ROOT / source).read_text(encoding="utf-8").rstrip("\n")
        text = f"{NOT_FOUND_BY_SEARCH}# {source}\n\n``````{language}\n{body}\n``````\n"
        _write(folder / "files" / f"{source}.md", text)


def navigation() -> list[tuple[str, str, str]]:
    """The pages in the order of the menu, each with its tab, its title there and its place in the site."""
    found: list[tuple[str, str, str]] = []

    def collect(tab: str, entries: list[Any]) -> None:
        for entry in entries:
            title, target = next(iter(entry.items())) if isinstance(entry, dict) else (tab, entry)
            if isinstance(target, list):
                collect(tab or title, target)
            else:
                found.append((tab, title, target))

    collect("", yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))["nav"])
    return found


def index_for_programs(sources: Path) -> str:
    """The content of `llms.txt`: every page with its first sentence, as Markdown (llmstxt.org)."""
    settings = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    lines = [f"# {settings['site_name']}", "", f"> {settings['site_description']}"]
    for tab, entries in itertools.groupby(navigation(), lambda entry: entry[0]):
        lines += ["", f"## {tab}", ""]
        for _, title, place in entries:
            lines.append(f"- [{title}]({place}): {_first_sentence((sources / place).read_text(encoding='utf-8'))}")
    return "\n".join(lines) + "\n"


def _first_sentence(page: str) -> str:
    """What a page says about itself: the first sentence of its first paragraph, without links."""
    text = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    paragraphs = (part.strip() for part in text.split("\n\n"))
    first = next((part for part in paragraphs if re.match(r"(?!```)[^#|!<>-]", part)), "")
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.:])\s", first)[0].rstrip(":.") + "."


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@dataclass
class PageReader(html.parser.HTMLParser):
    """Collects what a built page loads, where it links to, and which anchors it has."""

    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at one element."""
        attributes = {name: value or "" for name, value in attrs}
        if "id" in attributes:
            self.anchors.add(attributes["id"])
        if (loading := LOADING.get(tag)) and attributes.get(loading):
            self.loads.append(attributes[loading])
        if tag == "link" and LOADING_RELS & set(attributes.get("rel", "").split()):
            self.loads.append(attributes["href"])
        self.loads += [part.split()[0] for part in attributes.get("srcset", "").split(",") if part.strip()]
        self.loads += _CSS_LOAD.findall(attributes.get("style", ""))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])


def faults_of(site: Path) -> Iterator[str]:
    """What is wrong with a built site: loads from other hosts, links to nowhere."""
    read: dict[Path, PageReader] = {}
    for path in sorted(site.rglob("*.html")):
        read[path] = PageReader()
        read[path].feed(path.read_text(encoding="utf-8"))
    for path, page in read.items():
        name = path.relative_to(site)
        for load in page.loads:
            if re.match(r"(https?:)?//", load):
                yield f"{name} loads {load} from another host"
            elif not load.startswith("data:") and not _target(site, path, load).exists():
                yield f"{name} loads {load}, which is not there"
        for link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            target, anchor = _target(site, path, link), unquote(link.partition("#")[2])
            if not target.exists():
                yield f"{name} links to {link}, which is not there"
            elif anchor and target in read and anchor not in read[target].anchors:
                yield f"{name} links to {link}, and {target.relative_to(site)} has no such heading"
    for style in sorted(site.rglob("*.css")):
        for load in _CSS_LOAD.findall(style.read_text(encoding="utf-8")):
            yield f"{style.relative_to(site)} loads {load} from another host"


def _target(site: Path, page: Path, link: str) -> Path:
    name = unquote(re.split(r"[?#]", link)[0])
    if not name:
        return page
    start = site if name.startswith("/") else page.parent
    path = Path(os.path.normpath(start / name.lstrip("/")))
    return path / "index.html" if path.is_dir() else path


def main() -> None:
    """Build the site and check it."""
    for folder in (STAGED, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    stage(STAGED)
    zensical = Path(sys.executable).with_name("zensical")
    built = subprocess.run([zensical, "build", "--clean", "--strict", "--config-file", SETTINGS], check=False)
    if built.returncode != 0:
        sys.exit("The generator refused the pages: see above.")
    # For programs: an index, and each page as it was written.
    _write(SITE / "llms.txt", index_for_programs(STAGED))
    for _, _, place in navigation():
        shutil.copy(STAGED / place, SITE / place)
    faults = list(faults_of(SITE))
    if faults:
        sys.exit("\n".join(["The built site has faults:", *faults]))
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}; open index.html")


if __name__ == "__main__":
    main()
