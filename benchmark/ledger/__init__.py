"""What a result is of: records, their keys, and the one view of a run that all readers share."""
