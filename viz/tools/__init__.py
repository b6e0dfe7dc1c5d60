"""Tools: a Space's folder."""
