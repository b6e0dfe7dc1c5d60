"""Trains what the shipped pairs need: the chat model's drafts, and its picture reader.

The small pair's own trainer is in the history: its card names the commit.
"""
