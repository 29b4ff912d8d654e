"""The claims of the five papers that can be put to a test on two small models, and the comparisons that test them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """A recipe that is claimed to be better than another under a metric, in a run."""

    on: str
    metric: str
    recipe: str
    than: str


@dataclass(frozen=True)
class Claim:
    """What a paper says, in a sentence, and what would have to be true for it here.

    Attributes:
        paper: its short name.
        text: the claim.
        comparisons: what it rests on; none where it was not measured, so that it cannot be told.
        no_loss: whether it says that nothing is lost, and not that something is gained.
    """

    paper: str
    text: str
    comparisons: tuple[Comparison, ...] = ()
    no_loss: bool = False


def each(on: str, metrics: tuple[str, ...], pairs: list[tuple[str, str]]) -> tuple[Comparison, ...]:
    """Return the comparisons of pairs of recipes under each of some metrics."""
    return tuple(Comparison(on, metric, *pair) for pair in pairs for metric in metrics)


IIA = ("negative(include_zero=True)", "positive(include_zero=True)")
RANDOMISED = tuple(f"randomisation_spearman(stages=({share},))" for share in (0.25, 0.5, 0.75, 1.0))
BOARD = ("ins_del(step=12544)", "average_precision")
TOKENS = ("deletion_aopc", "insertion_aopc")
CURVES = ("ins_del(step=3584)",)
SEARCHED = ("ins_del_mda(step=2048)", "mas_ins_del(step=2048)")
FORWARD = ("att_in", "globenc", "alti(variant='skipplus')", "decompx")
CAMS = ("grad_cam", "grad_cam_pp", "xgrad_cam", "xgrad_cam_plus", "hires_cam", "grad_cam_elementwise")
PETS, PHOTOGRAPHS = "claims-vit/skipplus-pets", "claims-vit/skipplus-photographs"
QUADS = {
    "quads-vit": (
        "bi_attn",
        "inflow",
        "grad_rollout",
        "t_attn",
        "t_attr(variant='mda')",
        "skip_plus(ixg)",
        "gae",
        "caap",
    ),
    "quads-cnn": ("grad_cam", "guided_backprop", "guided_grad_cam", "ixg", "lrp(preset='captum')"),
}


def streams(operator: str, cams: tuple[str, ...] = CAMS) -> list[tuple[str, str]]:
    """Return class activation maps summed over blocks, each beside that of the last block."""
    return [(f"{operator}({cam}(variant='stream'))", f"layers({cam}(variant='stream'), first=-1)") for cam in cams]


def contrasted(on: str, preset: str) -> tuple[Comparison, ...]:
    """Return every method of a model with its quad's classes competing, beside the method alone."""
    pairs = [(f"var({method}, classes={{classes}}, preset='{preset}')", method) for method in QUADS[on]]
    return each(on, ("region_attribution", "iou"), pairs)


def alone(methods: tuple[str, ...], operator: str) -> list[tuple[str, str]]:
    """Return methods under an operator, each beside the method alone."""
    return [(f"{operator}({method})", method) for method in methods]


CLAIMS = (
    Claim(
        "IIA",
        "On transformers IIA outperforms T-Attr and GAE across all metrics.",
        each("claims-vit/iia", IIA, [("iia2(steps=5)", "t_attr"), ("iia2(steps=5)", "gae")]),
    ),
    Claim(
        "IIA",
        "On transformers the authors' released form beats both as well.",
        each("claims-vit/iia", IIA, [("iia2(variant='released')", "t_attr"), ("iia2(variant='released')", "gae")]),
    ),
    Claim(
        "IIA",
        "IIA3 surpasses IIA2 on transformers.",
        each("claims-vit/iia", IIA, [("iia3(steps=5)", "iia2(steps=5)")]),
    ),
    Claim(
        "IIA",
        "On transformers IIA2 is better than IMG and ACT, each integral alone, and than integrated gradients.",
        each(
            "claims-vit/iia", IIA, [("iia2(steps=5)", one) for one in ("img(steps=5)", "act(steps=5)", "ig(steps=20)")]
        ),
    ),
    Claim(
        "IIA",
        "ACT, the integral over the last layer, outperforms IMG, the one over the image.",
        (
            *each("claims-vit/iia", IIA, [("act(steps=5)", "img(steps=5)")]),
            *each("leaderboard-cnn/few-passes", BOARD, [("act", "img")]),
        ),
    ),
    Claim(
        "IIA",
        "On transformers IIA2 outperforms IIA2 (L−1) across the board.",
        each("claims-vit/iia", IIA, [("iia2(steps=5)", "iia2(steps=5, layer=-2)")]),
    ),
    Claim(
        "IIA",
        "On convolutional networks IIA outperforms all ten baselines across all metrics.",
        each(
            "leaderboard-cnn/few-passes",
            BOARD,
            [
                ("iia2", one)
                for one in (
                    "grad_cam",
                    "grad_cam_pp",
                    "lift_cam",
                    "ablation_cam",
                    "layer_cam",
                    "xgrad_cam",
                    "full_grad",
                    "ig(steps=8)",
                    "guided_ig(steps=8)",
                    "blur_ig(steps=8)",
                )
            ],
        ),
    ),
    Claim(
        "IIA",
        "On convolutional networks IIA2 is better than IMG and ACT, and IIA3 surpasses IIA2.",
        each("leaderboard-cnn/few-passes", BOARD, [("iia2", "img"), ("iia2", "act"), ("iia3", "iia2")]),
    ),
    *(
        Claim("VAR", f"On {kind} VAR, as {form}, improves localisation on quads.", contrasted(on, preset))
        for on, kind in (("quads-vit", "transformers"), ("quads-cnn", "convolutional networks"))
        for preset, form in (("table", "the paper's table has it"), ("text", "the text has it"))
    ),
    Claim(
        "VAR",
        "VAR greatly improves accuracy information curves of transformers.",
        each(
            "claims-vit/var",
            ("aic",),
            [(f"var({one}{preset})", one) for one in ("gae", "skip_plus(ixg)") for preset in ("", ", preset='table'")],
        ),
    ),
    *(
        Claim(
            "VAR",
            f"On convolutional networks maps with VAR, as {form}, change more when weights are randomised, for every"
            " method and share.",
            each(
                "claims-cnn/var-randomised",
                RANDOMISED,
                [
                    (f"var({method}{preset})", method)
                    for method in ("grad_cam", "guided_backprop", "ixg", "guided_grad_cam")
                ],
            ),
        )
        for preset, form in ((", preset='table'", "the paper's table has it"), ("", "the text has it"))
    ),
    Claim(
        "SkipPLUS",
        "Forward token attribution as it was defined stays behind GenAtt.",
        (
            *each(PETS, ("average_precision",), [("gae", one) for one in FORWARD]),
            *each(PHOTOGRAPHS, TOKENS, [("gae", one) for one in FORWARD]),
        ),
    ),
    Claim(
        "SkipPLUS",
        "PLUS improves forward token attribution.",
        (
            *each(PETS, ("average_precision",), alone(FORWARD, "plus")),
            *each(PHOTOGRAPHS, TOKENS, alone(FORWARD, "plus")),
        ),
    ),
    Claim(
        "SkipPLUS",
        "SkipPLUS improves on PLUS.",
        (
            *each(
                PETS,
                ("average_precision",),
                [(f"skip_plus({one})", f"plus({one})") for one in (*FORWARD, "gae", "ixg")],
            ),
            *each(PHOTOGRAPHS, TOKENS, [(f"skip_plus({one})", f"plus({one})") for one in (*FORWARD, "gae", "ixg")]),
        ),
    ),
    Claim(
        "SkipPLUS",
        "DecompX with SkipPLUS outperforms all other methods, DecompX itself among them.",
        (
            *each(
                PETS,
                ("average_precision",),
                [
                    ("skip_plus(decompx)", one)
                    for one in (
                        "decompx",
                        "gae",
                        "skip_plus(gae)",
                        "skip_plus(ixg)",
                        "layers(grad_cam(variant='stream'), first=-1)",
                    )
                ],
            ),
            *each(
                PHOTOGRAPHS,
                TOKENS,
                [
                    ("skip_plus(decompx)", one)
                    for one in (
                        "decompx",
                        "gae",
                        "skip_plus(gae)",
                        "skip_plus(ixg)",
                        "layers(grad_cam(variant='stream'), first=-1)",
                    )
                ],
            ),
        ),
    ),
    Claim(
        "SkipPLUS",
        "Class activation maps, which start at the last block, are lifted by PLUS.",
        (
            *each(PETS, ("average_precision",), streams("plus")),
            *each(PHOTOGRAPHS, TOKENS, streams("plus", ("grad_cam", "hires_cam"))),
        ),
    ),
    Claim(
        "SkipPLUS",
        "Class activation maps, which start at the last block, are lifted by SkipPLUS.",
        (
            *each(PETS, ("average_precision",), streams("skip_plus")),
            *each(PHOTOGRAPHS, TOKENS, streams("skip_plus", ("grad_cam", "hires_cam"))),
        ),
    ),
    Claim(
        "SkipPLUS",
        "Where PLUS does not help it does not degrade considerably: GenAtt and input times gradient.",
        (
            *each(PETS, ("average_precision",), alone(("gae", "ixg"), "plus")),
            *each(PHOTOGRAPHS, TOKENS, alone(("gae", "ixg"), "plus")),
        ),
        no_loss=True,
    ),
    Claim(
        "SkipPLUS",
        "FullGrad+ improves on FullGrad, and more so from the middle on.",
        each(
            PETS,
            ("average_precision",),
            [("full_grad_plus", "full_grad"), ("full_grad_plus(start='half')", "full_grad_plus")],
        ),
    ),
    Claim(
        "CAAP",
        "CAAP is more faithful than gradients, attention and relevance.",
        each(
            "claims-vit/caap",
            CURVES,
            [("caap", one) for one in ("grad_cam", "rollout", "t_attr", "plus(ixg)", "plus(libra(ixg))")],
        ),
    ),
    Claim(
        "CAAP",
        "CAAP localises better than gradients, attention and relevance.",
        each(
            "claims-vit/caap-pets",
            ("aupr1",),
            [("caap", one) for one in ("grad_cam", "rollout", "t_attr", "plus(ixg)", "plus(libra(ixg))")],
        ),
    ),
    Claim(
        "CAAP",
        "Patching activations beats pasting patches into the input.",
        each("claims-vit/caap", CURVES, [("caap", "simple_insertion")]),
    ),
    Claim(
        "CAAP",
        "The efficient form loses nothing.",
        (
            *each("claims-vit/caap", CURVES, [("e_caap", "caap")]),
            *each("claims-vit/caap-pets", ("aupr1",), [("e_caap", "caap")]),
        ),
        no_loss=True,
    ),
    Claim(
        "CAAP",
        "A patch with its neighbours beats the patch alone.",
        (
            *each("claims-vit/caap", CURVES, [("caap", "caap(radius=0)"), ("caap(radius=2)", "caap(radius=0)")]),
            *each(
                "claims-vit/caap-pets", ("aupr1",), [("caap", "caap(radius=0)"), ("caap(radius=2)", "caap(radius=0)")]
            ),
        ),
    ),
    Claim(
        "CAAP",
        "Patching up to an intermediate layer beats the first layers alone, and all layers.",
        (
            *each("claims-vit/caap", CURVES, [("caap", "caap(last=2)"), ("caap", "caap(frozen=True)")]),
            *each("claims-vit/caap-pets", ("aupr1",), [("caap", "caap(last=2)"), ("caap", "caap(frozen=True)")]),
        ),
    ),
    Claim(
        "CAAP",
        "Faithfulness and localisation are largely insensitive to the blank image that patches are put into.",
        (
            *each(
                "claims-vit/caap",
                CURVES,
                [("caap(blank='mean')", "caap"), ("caap(blank='black')", "caap"), ("caap", "caap(blank='mean')")],
            ),
            *each(
                "claims-vit/caap-pets",
                ("aupr1",),
                [("caap(blank='mean')", "caap"), ("caap(blank='black')", "caap"), ("caap", "caap(blank='mean')")],
            ),
        ),
        no_loss=True,
    ),
    Claim(
        "CAAP",
        "On convolutional networks CAAP beats Grad-CAM.",
        each("leaderboard-cnn/few-passes", BOARD, [("caap", "grad_cam")]),
    ),
    Claim(
        "MDA",
        "MDA beats seven methods by insertion minus deletion, also in their magnitude-aligned form.",
        each(
            "claims-vit/mda",
            SEARCHED,
            [
                ("mda(cells=7)", one)
                for one in (
                    "att_cam(variant='mda')",
                    "att_ig",
                    "vit_cx",
                    "t_attn",
                    "t_attr(variant='mda')",
                    "bi_attn",
                    "tis",
                )
            ],
        ),
    ),
    Claim(
        "MDA",
        "MDA is ahead by metrics that it does not optimise as well; here single deletion.",
        each(
            "claims-vit/mda",
            ("single_deletion",),
            [
                ("mda(cells=7)", one)
                for one in (
                    "att_cam(variant='mda')",
                    "att_ig",
                    "vit_cx",
                    "t_attn",
                    "t_attr(variant='mda')",
                    "bi_attn",
                    "tis",
                )
            ],
        ),
    ),
    Claim(
        "MDA",
        "γ = 0 achieves the best scores of all densities.",
        each(
            "claims-vit/mda",
            SEARCHED,
            [("mda(cells=7)", "mda(cells=7, gamma=0.5)"), ("mda(cells=7)", "mda(cells=7, gamma=1.0)")],
        ),
    ),
    Claim(
        "MDA",
        "The penalty of γ = .5 and 1 is not extreme.",
        each(
            "claims-vit/mda",
            SEARCHED,
            [("mda(cells=7, gamma=0.5)", "mda(cells=7)"), ("mda(cells=7, gamma=1.0)", "mda(cells=7)")],
        ),
        no_loss=True,
    ),
    Claim(
        "MDA",
        "(Ours) The fast search and two segments per step lose nothing.",
        each(
            "claims-vit/mda",
            SEARCHED,
            [("mda(cells=7, search='fast')", "mda(cells=7)"), ("mda(cells=7, per_step=2)", "mda(cells=7)")],
        ),
        no_loss=True,
    ),
    Claim(
        "MDA",
        "(Ours) A better seed gives a better search.",
        each("claims-vit/mda", SEARCHED, [("mda(seed=caap, cells=7)", "mda(cells=7)")]),
    ),
)
