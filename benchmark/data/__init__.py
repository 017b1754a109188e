"""Text: documents of a domain, the tokenizer, token ids on disk, the layout of the vocabulary."""
