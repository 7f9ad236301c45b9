"""docs/settings.md is what the schema says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_committed_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("gen_settings_doc", ROOT / "tools" / "gen_settings_doc.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.render() == (ROOT / "docs" / "settings.md").read_text(), "run tools/gen_settings_doc.py"
