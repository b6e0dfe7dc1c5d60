"""What the Evaluation and Drafts tabs say, and the same as a file."""
