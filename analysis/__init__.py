"""Turns records into numbers, tables, figures, verdicts and the report page.

Nothing here trains. Only `model_similarity` imports torch.
"""
