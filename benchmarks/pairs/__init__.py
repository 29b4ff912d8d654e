"""Methods and metrics beside those of other packages; `benchmarks/peers.py` measures them."""

from pairs import black_box, cams, gradients, metrics

PAIRS = [*gradients.PAIRS, *black_box.PAIRS, *cams.PAIRS, *metrics.PAIRS]
