"""Models of other libraries: scikit-learn, ONNX."""
