"""Pure functions over records: replay with another policy, figures, closed forms."""
