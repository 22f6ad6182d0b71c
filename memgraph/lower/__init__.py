"""Inductor in the plan's order; the wrapper that it writes, read back."""
