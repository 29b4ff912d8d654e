"""Vision-language models: a picture and a question in, an answer out, one token after the other."""
