"""Models that are more than a network: columns (progressive.py), and modules beside it
(extended.py), as adapters are.

Either file has `load(folder)`, the saved model, whose `make_encoder(domain)` is its part to
fine-tune.
"""
