"""Floor 3: the figures of this device and this disk, and what is allocated on it."""
