"""Export of models to scikit-learn and ONNX."""
