"""Taking a trained model elsewhere: generation, export and import."""
