"""Floor 1: errors, sizes, the kept folder, torch's private names."""
