"""Fixed texts that reveal a changed model, tokenizer or server, and calibrate int8."""

from pathlib import Path

PROBE_FILE = Path(__file__).with_name("probe.txt")  # 64 texts, one per line


def probe_texts() -> list[str]:
    """Return the fixed texts."""
    return PROBE_FILE.read_text(encoding="utf-8").splitlines()
