"""Trains drafts for the chat model.

The trainers of the small pair and of the picture reader are in the history: their cards name the commits.
"""
