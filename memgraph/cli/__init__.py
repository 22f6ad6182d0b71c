"""The command line."""

import sys


def main() -> None:
    """Run the command line, where the extra that brings its libraries is installed."""
    try:
        from memgraph.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name != "typer":
            raise
        sys.exit('the command line needs typer: pip install "torch-memgraph[cli]"')
    app()
