"""The joint graph as numbers. It reads fx graphs, decides nothing and rewrites nothing."""
