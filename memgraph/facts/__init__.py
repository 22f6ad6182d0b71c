"""The joint graph as numbers. Reads fx graphs; decides nothing and rewrites nothing."""
