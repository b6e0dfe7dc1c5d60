"""Policies and drafts over whole suites of prompts."""
