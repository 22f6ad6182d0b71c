"""A tile: the body of one shard, the graph that calls it for each shard, and how torch's cache stores that."""
