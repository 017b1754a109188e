"""Methods and architectures that tests bring, as their authors would write them."""
