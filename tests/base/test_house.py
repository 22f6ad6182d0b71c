"""What a reader can rely on: no file over 400 lines, no function over 60."""

import ast

import pytest

from tests.support import ROOT

LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 400, 60
FOLDERS = ("memgraph", "passes", "tests", "benchmarks", "examples")
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_are_short(file):
    text = file.read_text()
    assert len(text.splitlines()) <= LINES_OF_A_FILE
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {
        node.name: lines for node in functions if (lines := node.end_lineno - node.lineno + 1) > LINES_OF_A_FUNCTION
    }
    assert not long
