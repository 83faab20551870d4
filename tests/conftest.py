"""A store on a real disk, as most tests want it; a test that wants another one declares its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from stores import KEY

from squilla_files.models import SessionNode
from squilla_files.storage import SessionStorage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[SessionStorage]:
    async with SessionStorage(root, device="desk", durability="os") as opened:
        yield opened


@pytest.fixture
async def node(store: SessionStorage) -> SessionNode:
    return await store.upsert_session(SessionNode(session_key=KEY))
