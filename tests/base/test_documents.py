"""The documents themselves: nothing stands twice, and the guide's contents are what it has."""

import itertools
import re
from collections import Counter

import pytest

from tests.support import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_nothing_stands_twice(path):
    """As a merge may have it."""
    lines = (line for line in path.read_text().splitlines() if not line.startswith("|"))
    known = Counter(line for line in lines if len(line) > 60 or line.startswith("##"))
    assert [line for line, count in known.items() if count > 1] == []


def test_the_contents_of_the_guide():
    text = (ROOT / "docs" / "guide.md").read_text()
    contents = itertools.takewhile(lambda line: not line.startswith("## "), text.splitlines())
    listed = re.findall(r"^- \[(.*)\]\(#(.*)\)$", "\n".join(contents), re.MULTILINE)
    assert [title for title, _ in listed] == re.findall(r"^## (.*)$", text, re.MULTILINE)
    for title, place in listed:
        assert place == re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
