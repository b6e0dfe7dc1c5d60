"""Pure functions over records: replay with another policy, and figures."""
