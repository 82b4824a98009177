"""Records of epochs, and the stopping rule."""
