"""Floor 4: the joint graph as numbers. It reads fx graphs, decides nothing and rewrites nothing."""
