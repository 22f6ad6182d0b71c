"""Token flow: which stretches of a joint graph can run one shard of the tokens at a time."""
