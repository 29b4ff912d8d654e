"""Information curves: the model's answer against the information in what it is shown."""
