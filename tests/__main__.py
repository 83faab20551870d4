"""All checks of the project, one after another: ``python -m tests``. Fails if one of them does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKS = (
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    ["mypy", "squilla_files", "examples"],
    ["pytest", "--cov", "--cov-report=term:skip-covered"],
)


def main() -> int:
    """Run each check, say which ones failed, and return how many."""
    failed = []
    for check in CHECKS:
        print("$", *check, flush=True)
        if subprocess.run([sys.executable, "-m", *check], cwd=Path(__file__).parent.parent, check=False).returncode:
            failed.append(" ".join(check))
    print("failed: " + "; ".join(failed) if failed else "all checks passed")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
