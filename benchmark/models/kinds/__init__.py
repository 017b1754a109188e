"""Models that are more than a network: columns, adapters, experts, a kind a file.

Each file has `load(folder)`, the saved model, and `load_column(folder, domain)`, what is fine-tuned of it.
"""
