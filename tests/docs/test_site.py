"""The documentation site has every page, and defects of a built one are found."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.site import (
    ROOT,
    faults_of,
    index_for_programs,
    navigation,
    pages,
    stage,
    with_links_of_the_site,
)

README_WORDS_MAX = 900


def test_every_page_is_in_the_menu_once() -> None:
    listed = [place for _, _, place in navigation()]
    assert sorted(listed) == sorted(pages().values()), "edit the nav of mkdocs.yml"


def test_links_between_pages_fit_the_site() -> None:
    placed = {"README.md": "index.md", "docs/a.md": "a.md", "docs/b/README.md": "b/index.md"}

    def changed(text: str, page: str) -> str:
        return with_links_of_the_site(text, page, placed, set())

    assert changed("[a](docs/a.md#top) [b](docs/b/README.md)", "README.md") == "[a](a.md#top) [b](b/index.md)"
    assert changed("[up](../../README.md) [a](../a.md)", "docs/b/README.md") == "[up](../index.md) [a](../a.md)"
    assert changed("![x](images/x.svg)", "docs/a.md") == "![x](images/x.svg)"
    assert changed("[web](https://example.com) [here](#top)", "docs/a.md") == "[web](https://example.com) [here](#top)"
    assert changed("```md\n[a](docs/a.md)\n```\n", "README.md") == "```md\n[a](docs/a.md)\n```\n"


def test_a_link_to_a_file_leads_to_a_page_that_shows_it_and_one_to_a_folder_is_text() -> None:
    sources: set[str] = set()
    text = with_links_of_the_site(
        "[file](../Makefile) [folder](../examples)", "docs/a.md", {"docs/a.md": "a.md"}, sources
    )
    assert text == "[file](files/Makefile.md) folder"
    assert sources == {"Makefile"}


def test_the_index_for_programs_has_every_page_with_a_sentence(tmp_path: Path) -> None:
    stage(tmp_path / "sources")
    lines = [line for line in index_for_programs(tmp_path / "sources").splitlines() if line.startswith("- ")]
    assert len(lines) == len(navigation())
    assert [line for line in lines if not re.fullmatch(r"- \[.+\]\(.+\.md\): .{10,}\.", line)] == []


def test_loads_from_other_hosts_and_links_to_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<h2 id="there">There</h2>')
    (tmp_path / "own.js").touch()
    (tmp_path / "style.css").write_text(
        "@import 'https://fonts.example/a.css'; p { background: url(//cdn.example/p.png) }"
    )
    (tmp_path / "index.html").write_text(
        '<script src="own.js"></script><script src="https://cdn.example/lib.js"></script>'
        '<link rel="stylesheet" href="//fonts.example/css"><link rel="canonical" href="https://isthmus.example/">'
        '<img src="missing.png" srcset="https://img.example/2x.png 2x"><img src="data:image/png;base64,">'
        '<a href="other.html#there">ok</a><a href="other.html#gone">no</a><a href="nowhere.html">no</a>'
        '<a href="https://example.com/">elsewhere is fine</a>'
    )
    assert list(faults_of(tmp_path)) == [
        "index.html loads https://cdn.example/lib.js from another host",
        "index.html loads //fonts.example/css from another host",
        "index.html loads missing.png, which is not there",
        "index.html loads https://img.example/2x.png from another host",
        "index.html links to other.html#gone, and other.html has no such heading",
        "index.html links to nowhere.html, which is not there",
        "style.css loads https://fonts.example/a.css from another host",
        "style.css loads //cdn.example/p.png from another host",
    ]


def test_the_readme_stays_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    words = re.findall(r"[\w'.-]*\w", re.sub(r"\]\([^)]*\)", "]", text))
    assert len(words) <= README_WORDS_MAX
