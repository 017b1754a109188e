"""Models that are more than a network.

They have columns (progressive.py), or modules beside the network, such as adapters (extended.py).
Both files have `load(folder)`, which returns a saved model. Its `make_encoder(domain)` returns the
part to fine-tune.
"""
