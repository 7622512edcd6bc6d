"""Do two sets of vectors come from the same texts, up to the rounding of a dtype?

Vectors of random or anisotropic networks have most of their length in common, so that even those
of different passages are close. So all of them are centred by the mean of the reference first, and
every row must be nearest to its own row of the reference, not only near it.
"""

import numpy as np
import numpy.typing as npt

from tests.benchmarks.gpu_proof.report import Check

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# Smallest cosine of a centred vector with its float32 reference: a relative error of 10 % and of
# 1.4 %. Random networks of BERT's size have 2 % in bfloat16 and 0.2 % in float16.
LEAST_COSINE = {"float32": 1 - 1e-6, "float16": 0.9999, "bfloat16": 0.995}
# Root mean square of the relative error over that of the padded network in the same dtype. Over
# hundreds of rows it has a spread far below 5 %; 1 % of noise on top of 2 % makes it 12 % larger.
MOST_EXCESS = 1.05
MOST_ROW_EXCESS = 2.5  # of the worst row over the worst row


def centred(vectors: Floats, reference: Floats) -> Doubles:
    """Without what all rows of the reference have in common, float64 ``(n, dim)``."""
    result: Doubles = vectors.astype(np.float64) - reference.astype(np.float64).mean(axis=0)
    return result


def cosines(vectors: Floats, reference: Floats) -> Doubles:
    """Of each row with its own row of the reference, centred; float64 ``(n,)``."""
    ours, theirs = centred(vectors, reference), centred(reference, reference)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    result: Doubles = (ours * theirs).sum(axis=1) / lengths
    return result


def relative_errors(vectors: Floats, reference: Floats) -> Doubles:
    """Distance of each row from its own over the length of that, centred; float64 ``(n,)``."""
    ours, theirs = centred(vectors, reference), centred(reference, reference)
    result: Doubles = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
    return result


def nearest_is_itself(vectors: Floats, reference: Floats) -> float:
    """Share of the rows whose nearest row of the reference is their own; NaN is nearest to none."""
    ours, theirs = centred(vectors, reference), centred(reference, reference)
    distances = (ours**2).sum(axis=1)[:, None] - 2 * ours @ theirs.T + (theirs**2).sum(axis=1)[None]
    own = np.diagonal(distances)
    others = distances + np.diag(np.full(len(own), np.inf))
    return float((own < others.min(axis=1)).mean())


def checks(vectors: Floats, reference: Floats, dtype: str) -> list[Check]:
    """That vectors in a dtype are those of a float32 reference, row by row."""
    least, itself = float(cosines(vectors, reference).min()), nearest_is_itself(vectors, reference)
    wanted = LEAST_COSINE[dtype]
    return [
        Check("nearest row is its own", itself == 1.0, itself, "1.0"),
        Check("least cosine with float32, centred", least >= wanted, least, f">= {wanted}"),
    ]


def excess_checks(vectors: Floats, peer: Floats, reference: Floats) -> list[Check]:
    """That errors against float32 are no larger than those of a peer in the same dtype."""
    ours, theirs = relative_errors(vectors, reference), relative_errors(peer, reference)
    typical = float(np.sqrt((ours**2).mean() / (theirs**2).mean()))
    worst = float(ours.max() / theirs.max())
    return [
        Check("error over that with padding", typical <= MOST_EXCESS, typical, f"<= {MOST_EXCESS}"),
        Check(
            "worst error over that with padding",
            worst <= MOST_ROW_EXCESS,
            worst,
            f"<= {MOST_ROW_EXCESS}",
        ),
    ]
