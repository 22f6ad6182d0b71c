"""Floor 1: errors, sizes, the cache folder, torch's private names."""
