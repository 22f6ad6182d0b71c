"""Numbers in, decisions out: nothing here ever sees an fx.Node."""
