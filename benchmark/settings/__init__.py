"""The settings of a suite: TOML files into frozen, validated settings. No torch here."""
