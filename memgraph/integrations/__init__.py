"""What fits memgraph into other libraries; each file imports the library that it is named after."""
