"""Rewrites of the graph, one a file. A pass realises a plan and never decides."""
