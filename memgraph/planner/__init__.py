"""Numbers in, decisions out. It never sees an fx.Node."""
