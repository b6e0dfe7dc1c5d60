"""The content of the Evaluation and Drafts tabs, also as a file."""
