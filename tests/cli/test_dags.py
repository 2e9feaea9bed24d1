"""The DAGs of the package are copied, and nobody's changes are lost."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import CommandLine


def test_dags_are_installed_and_changes_are_kept(segments: CommandLine, tmp_path: Path) -> None:
    brought = Path(segments.ok("dags", "path").out.strip())
    names = {path.name for path in brought.glob("segments_*.py")}
    assert "segments_rollback.py" in names
    target = tmp_path / "dags" / "of" / "airflow"
    assert segments.ok("dags", "install", target).out.count("installed") == len(names)
    assert {path.name for path in target.iterdir()} == names
    assert segments.ok("dags", "install", target).out.count("unchanged") == len(names)
    changed = target / "segments_rollback.py"
    changed.write_text("# ours\n")
    kept = segments("dags", "install", target)
    assert (kept.code, "kept: changed" in kept.out, "--force" in kept.err) == (0, True, True)
    assert changed.read_text() == "# ours\n"
    segments.ok("dags", "install", target, "--force")
    assert changed.read_bytes() == (brought / changed.name).read_bytes()
