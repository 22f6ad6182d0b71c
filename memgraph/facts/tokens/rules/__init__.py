"""How the operators pass tokens on, by subject."""
