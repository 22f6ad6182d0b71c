"""memgraph beside its peers, measured. Each file with a `main` is a command: `python -m benchmarks.tile --help`.

Commands run in the repository's root. What they measure goes to benchmarks/results.
"""
