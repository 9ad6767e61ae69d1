"""What all else stands on: the compiled library, its calls and errors, names, and tensors as the library sees them."""
