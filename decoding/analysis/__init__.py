"""Pure functions over records: replay under another policy, figures, closed forms."""
