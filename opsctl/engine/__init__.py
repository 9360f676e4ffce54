"""One engine: its process tree, its HTTP interface, its log."""
