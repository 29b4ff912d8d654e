"""Controls: maps that do not depend on the model."""
