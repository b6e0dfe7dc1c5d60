"""When to stop guessing: one file a policy, one small interface."""
