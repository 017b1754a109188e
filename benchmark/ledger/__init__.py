"""Records, the keys that say what they belong to, and the view of a run that all readers share."""
