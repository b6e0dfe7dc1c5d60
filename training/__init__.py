"""Training of the embedded pair: corpus, tokenizer, target, drafts, report. Run ``python -m training --help``."""
