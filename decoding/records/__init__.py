"""Plain data and names: what every other room reads. Imports no torch."""
