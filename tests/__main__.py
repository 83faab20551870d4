"""All checks of the project, one after another: ``python -m tests``. Fails if one of them does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MINUTES = 20  # a check that hangs fails
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
        try:
            subprocess.run([sys.executable, "-m", *check], cwd=ROOT, timeout=MINUTES * 60, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            failed.append(str(error))
    print("\n".join(failed) or "all checks passed")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
