"""The commands that look something up: what there is, a card, a citation, what is installed."""
