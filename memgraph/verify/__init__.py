"""The rewritten graph, held against the one before it by code of its own."""
