"""The public address of the project in the metadata of a release.

The repository does not know where it is published. The release workflow says it in `ISTHMUS_PROJECT_URL`: the package
then has project URLs, and the links and pictures of the README lead to the released version there. Without the
variable, as in every other build, there are no URLs and the README stays as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?!\w+:|#)([^)\s]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Sets `readme` and `urls`, which `pyproject.toml` declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill the fields in."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        if url := os.environ.get("ISTHMUS_PROJECT_URL", "").rstrip("/"):
            tag = f"v{metadata['version']}"
            readme = absolute_links(readme, url, tag)
            metadata["urls"] = {
                "Documentation": f"{url}/tree/{tag}/docs",
                "Source": url,
                "Issues": f"{url}/issues",
                "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def absolute_links(text: str, url: str, tag: str) -> str:
    """Markdown whose relative links and pictures lead to a repository, at a tag."""

    def absolute(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        return f"{mark}{label}{url}/{'raw' if mark else 'blob'}/{tag}/{target})"

    return _RELATIVE_LINK.sub(absolute, text)
