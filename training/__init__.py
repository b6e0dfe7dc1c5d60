"""Trains the drafts of the chat model. The small pair's own trainer is in the history: see its card."""
