"""The forks of a store. Asynchronous; see `Engine`."""

from __future__ import annotations

from squilla_files.branching import Taken, build, take
from squilla_files.keys import canonicalize_session_key
from squilla_files.models import SessionNode
from squilla_files.store_documents import StoredDocuments


class StoredBranches(StoredDocuments):
    """What a store does with forks."""

    async def branch_session(
        self,
        parent_key: str,
        child: SessionNode,
        *,
        entries: Taken = "none",
        before_message_id: str | None = None,
        max_fork_tokens: int | None = None,
    ) -> SessionNode:
        """Create *child*, with what it takes along of the session under *parent_key*; return it as it is stored.

        Args:
            parent_key: the session that it branches from.
            child: the session to be created; `forked_from_parent` is set on it.
            entries: ``"live"``: live and archived entries with every field, summaries and valid context states;
                ``"before"``: only the canonical entries before *before_message_id*; ``"none"``: nothing.
            before_message_id: see *entries*.
            max_fork_tokens: the most that may be taken along, by the entries' token counts and an estimate of the
                summaries; if it is more, nothing is.

        Raises:
            SessionNotFoundError: there is no parent.
            SessionExistsError: there is a session under the child's key.
            MessageNotFoundError: the parent has no message *before_message_id*; there is no child.

        Durability: the child is there whole once this returns, or not at all.
        """
        parent = canonicalize_session_key(parent_key)
        key = canonicalize_session_key(child.session_key)
        fork = await self.read(parent, lambda session: take(session, entries, before_message_id, max_fork_tokens))
        return self._known(await self.change(key, lambda session: build(session, child, fork)))
