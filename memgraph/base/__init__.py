"""Errors, sizes, the cache folder, torch's private names."""
