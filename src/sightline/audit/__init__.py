"""What can be believed: methods judged by metrics and controls, on the images they explain."""
