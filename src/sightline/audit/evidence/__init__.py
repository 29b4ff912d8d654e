"""Methods and metrics judged where the evidence is known: synthetic shapes, watermarks, parts, mosaics."""
