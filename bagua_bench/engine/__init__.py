"""The engine: an algorithm's communication beside a model's training, in the order and at the moments it declares."""
