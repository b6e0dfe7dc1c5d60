"""Plain data and names that every other package reads. Imports no torch."""
