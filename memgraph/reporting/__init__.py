"""What was planned and measured, as values, text, picture and trace."""
