"""The systems that Bagua is compared with, behind the trainer interface of the engine."""
