"""Lookahead policies, which decide when to stop guessing: one file per policy, one small interface."""
