"""Models that are more than a network.

They have columns (progressive.py), or modules beside the network (extended.py), as adapters are.
Either file has `load(folder)`, the saved model, whose `make_encoder(domain)` is its part to
fine-tune.
"""
