"""Writes docs/settings.md from the settings schema: every field, flag, type, default and meaning.

Run it after a change in src/pykubelet/settings; a unit test fails while the committed page is out of date.
`--check` only compares and leaves with status 1 when they differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pykubelet.settings.decode import Origin, default_config, encode_config
from pykubelet.settings.flags import IGNORED_FLAGS, KEPT_FLAGS, TITLES, all_flags, shown_default
from pykubelet.settings.gates import known_gates
from pykubelet.settings.kinds import ListOf, Nested
from pykubelet.settings.schema import GROUPS, SettingRef, all_settings
from pykubelet.settings.without_effect import GATES, REASONS, by_reason, described

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

INTRODUCTION = """# Settings

<!-- Made by tools/gen_settings_doc.py from src/pykubelet/settings. Change the schema, then run it again. -->

Settings come from a configuration file (`--config`, kind `KubeletConfiguration`, apiVersion
`kubelet.config.k8s.io/v1beta1`, YAML or JSON), from `.conf` files in a folder (`--config-dir`, merged in name
order) and from flags. Flags win over the folder, the folder over the file, the file over the defaults. An unknown
field or flag is an error. The flag of a field is deprecated except where a `*` follows it.

Durations are texts such as `1m30s`, quantities such as `500m` or `10Mi`. A zero, or an empty text, means the default
unless the type carries a `?`. Relative paths count from the folder of the `--config` file; those of flags from the
working folder.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _wire(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {held}" for key, held in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value != "" else '""'


def _default(ref: SettingRef, file_defaults: dict[str, object], flag_defaults: dict[str, object]) -> str:
    in_file, without = _lookup(file_defaults, ref.path), _lookup(flag_defaults, ref.path)
    text = _wire(in_file)
    return text if in_file == without else f"{text}; without a file {_wire(without)}"


def _lookup(wire: dict[str, object], path: str) -> object:
    value: object = wire
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _row(ref: SettingRef, default: str) -> str:
    info = ref.setting
    kind = "list of object" if isinstance(info.kind, ListOf) and isinstance(info.kind.item, Nested) else info.kind.name
    dashes = "-" if info.flag == "v" else "--"
    flag = f"`{dashes}{info.flag}`{'*' if info.flag in KEPT_FLAGS else ''}" if info.flag else ""
    cells = (
        f"`{ref.path}`",
        flag,
        kind + ("?" if info.optional else ""),
        _cell(default),
        _cell(described(info.doc, ref.path)),
    )
    return "| " + " | ".join(cells) + " |"


def _fields() -> list[str]:
    file_defaults = encode_config(default_config(Origin.MAIN_FILE), full=True)
    flag_defaults = encode_config(default_config(Origin.FLAGS_ONLY), full=True)
    lines = []
    for group in GROUPS:
        title = "API client and node status" if group == "node" else TITLES.get(group, group.capitalize())
        lines += [f"\n## {title}\n", "| field | flag | type | default | meaning |", "|---|---|---|---|---|"]
        for ref in all_settings():
            if ref.attributes[0] == group:
                inner = "[]" in ref.path
                default = _wire(ref.setting.default) if inner else _default(ref, file_defaults, flag_defaults)
                lines.append(_row(ref, default))
    return lines


def _flags() -> list[str]:
    lines = ["\n## Flags without a field\n", "| flag | type | default | meaning |", "|---|---|---|---|"]
    for flag in sorted(all_flags().values(), key=lambda flag: flag.name):
        if flag.path or flag.name in IGNORED_FLAGS:
            continue
        default = shown_default(flag) if flag.default not in ("", {}) else "-"
        doc = flag.doc + (" Deprecated." if flag.deprecated else "")
        lines.append(f"| `--{flag.name}` | {_cell(flag.form.name)} | {_cell(default)} | {_cell(doc)} |")
    return lines


def _gates() -> list[str]:
    lines = [
        "\n## Feature gates\n",
        "Set with `featureGates` or `--feature-gates`. `AllAlpha` and `AllBeta` switch every gate of a stage.",
        "A locked gate cannot be changed. Gates of other components are accepted and have no effect.\n",
        "| gate | default | stage | needs | effect |",
        "|---|---|---|---|---|",
    ]
    for gate in known_gates().values():
        if gate.kubelet:
            reason = f"none: {GATES[gate.name]}" if gate.name in GATES else "locked" if gate.locked else "switches"
            cells = (gate.name, "on" if gate.default else "off", gate.stage, ", ".join(gate.needs), reason)
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _without_effect() -> list[str]:
    counts = f"{len(all_settings())} fields, {len(all_flags())} flags and {len(known_gates())} feature gates"
    lines = [
        "\n## Accepted, without effect\n",
        f"Of {counts} these change nothing. The agent says so at its start when one is set.\n",
        "| setting | why |",
        "|---|---|",
    ]
    for reason, names in by_reason(REASONS).items():
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {_cell(reason)} |")
    return lines


def render() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION.rstrip(), *_fields(), *_flags(), *_gates(), *_without_effect()]) + "\n"


def main(arguments: list[str]) -> int:
    page = render()
    if "--check" in arguments:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != page:
            print(f"{PAGE} is out of date; run tools/gen_settings_doc.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
