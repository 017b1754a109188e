"""What a suite can say: TOML files into frozen, validated settings. No torch here."""
