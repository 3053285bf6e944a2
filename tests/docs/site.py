"""Build the documentation site from the Markdown of the repository: `make docs`.

The pages stay readable as plain files: their links name files of the repository. This module copies them into
`build/docs` with links that fit the site, runs the generator, and checks the result: every link leads somewhere, and no
page loads anything from another host. It runs in `.venv-docs`, without the hub.
"""

from __future__ import annotations

import html.parser
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[2]
STAGED = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
SETTINGS = ROOT / "mkdocs.yml"

OUTSIDE = {
    "README.md": "index.md",
    "DESIGN.md": "design.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "SECURITY.md": "security-policy.md",
    "examples/README.md": "examples.md",
}
"""Pages that are not below docs/, and their place in the site."""
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".yaml": "yaml", ".service": "ini"}
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


def stage() -> None:
    """Write the site's sources into `build/docs`."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(ROOT / "docs", STAGED, ignore=shutil.ignore_patterns("*.md", "overrides"))
    placed = pages()
    sources: set[str] = set()
    for page, place in placed.items():
        text = with_links_of_the_site((ROOT / page).read_text(encoding="utf-8"), page, placed, sources)
        _write(STAGED / place, text)
    for source in sorted(sources):
        language = LANGUAGES.get(Path(source).suffix, "text")
        body = (ROOT / source).read_text(encoding="utf-8").rstrip("\n")
        _write(STAGED / "files" / f"{source}.md", f"# {source}\n\n``````{language}\n{body}\n``````\n")


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
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = Path(sys.executable).with_name("zensical")
    built = subprocess.run([zensical, "build", "--clean", "--strict", "--config-file", SETTINGS], check=False)
    if built.returncode != 0:
        sys.exit("The generator refused the pages: see above.")
    faults = list(faults_of(SITE))
    if faults:
        sys.exit("\n".join(["The built site has faults:", *faults]))
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}; open index.html")


if __name__ == "__main__":
    main()
