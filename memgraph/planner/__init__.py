"""Floor 5: numbers in, decisions out. It never sees an fx.Node."""
