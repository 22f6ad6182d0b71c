"""Floor 6: what was planned and measured, as values, text, picture and trace."""
