"""Taking a trained model elsewhere: generation, and later export and evaluation."""
