"""Loss curves as pictures."""

from xml.etree import ElementTree

import pytest

from reports.plots.training import draw_losses
from retrievers.training.engine.curve import LossPoint

SVG = "{http://www.w3.org/2000/svg}"


def curve(steps: int) -> list[LossPoint]:
    return [
        LossPoint(step, {"loss": 9 / step, "decoder_mlm": 4 / step}, 0.1, 1.0, 10)
        for step in range(1, steps + 1)
    ]


@pytest.mark.parametrize("steps", [1, 30])
def test_every_loss_is_a_line_with_its_name(tmp_path, steps):
    pytest.importorskip("matplotlib")
    svg, png = draw_losses(curve(steps), tmp_path / "losses")
    assert png.read_bytes().startswith(b"\x89PNG")
    texts = {node.text for node in ElementTree.parse(svg).iter(f"{SVG}text")}
    assert {"loss", "decoder mlm", "step"} <= texts


def test_the_same_curve_is_the_same_picture(tmp_path):
    pytest.importorskip("matplotlib")
    _, one = draw_losses(curve(5), tmp_path / "one")
    _, other = draw_losses(curve(5), tmp_path / "other")
    assert one.read_bytes() == other.read_bytes()
