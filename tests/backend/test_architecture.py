"""The page that leads through the code names files that are there."""

from __future__ import annotations

import re

from tests.support import ROOT


def test_every_file_that_the_page_names_is_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:memgraph|passes)/[\w/]+\.py)`", page)
    assert len(named) > 30 and not [name for name in named if not (ROOT / name).is_file()]
