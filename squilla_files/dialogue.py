"""What one transcript entry says: its text, the tools that it calls, the results that it brings.

Entries come from programs that write content as plain text, as lists of blocks, or as a JSON envelope with attachments,
and tool calls nested or flat. Everything that reasons about a transcript reads the one shape made here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from squilla_files.tokens import as_text

TEXT_RESULT_PREFIX: Final = "[Tool result "
TEXT_CALL_MARKS: Final = ("[tool_call:", "[Used tool:")

_TEXT_BLOCKS: Final = frozenset({"text", "input_text", "output_text"})
_CALL_BLOCKS: Final = frozenset({"tool_use", "server_tool_use", "toolCall", "tool_call", "function_call"})
_RESULT_BLOCKS: Final = frozenset({"tool_result", "web_search_tool_result", "function_call_output"})
_REASONING_BLOCKS: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})


class ToolCall(NamedTuple):
    """One call of a tool.

    Attributes:
        id: what a result names to answer it, None where the program gave none.
        name: the tool.
        arguments: a mapping, JSON text, or whatever else was recorded.
    """

    id: str | None
    name: str
    arguments: Any


class ToolResult(NamedTuple):
    """One result of a tool.

    Attributes:
        id: the call that it answers, None where the program gave none.
        text: what the tool returned.
    """

    id: str | None
    text: str


class Message(NamedTuple):
    """One transcript entry, read.

    Attributes:
        role: user, assistant, system, tool, or what the entry says.
        text: what was said; empty where the entry only brings tool results.
        calls: the tools called, in order.
        results: the tool results brought, in order.
        reasoning: the reasoning, "" where there is none.
    """

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    reasoning: str = ""

    @property
    def calls_in_text(self) -> bool:
        """Whether the text itself records a call, as transcripts flattened to text do."""
        text = self.text
        return "[" in text and any(mark in text for mark in TEXT_CALL_MARKS)

    @property
    def shown(self) -> str:
        """What a reader sees: the text, or else the text of the results."""
        return self.text or "\n".join(result.text for result in self.results)


def read_messages(entries: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return what each of *entries* says, in their order."""
    return [read_message(entry) for entry in entries]


def read_message(entry: Mapping[str, Any]) -> Message:
    """Return what *entry* says. Content of an unexpected shape is shown as JSON, never an error."""
    role = str(entry.get("role") or "unknown")
    tool_calls, answered, thought = entry.get("tool_calls"), entry.get("tool_call_id"), entry.get("reasoning_content")
    content = entry.get("content")
    if isinstance(content, str) and role != "tool" and content[:1] not in ("{", "[") and not (tool_calls or answered):
        # Most messages are only words, and a long transcript has tens of thousands of them.
        return Message(role, content, reasoning=as_text(thought or None))
    text, calls, results, reasoning = _read_content(content)
    if isinstance(tool_calls, list):
        calls += [_read_call(call) for call in tool_calls if isinstance(call, Mapping)]
    if answered or (role == "tool" and not results) or text.startswith(TEXT_RESULT_PREFIX):
        results.insert(0, ToolResult(str(answered) if answered else None, text))
        text = ""
    if thought:
        reasoning.append(as_text(thought))
    return Message(role, text, tuple(calls), tuple(results), "\n".join(reasoning))


def _read_content(content: Any) -> tuple[str, list[ToolCall], list[ToolResult], list[str]]:
    if isinstance(content, str):
        return _unwrap_envelope(content), [], [], []
    if isinstance(content, Mapping):
        return _envelope_text(content) or as_text(content), [], [], []
    if not isinstance(content, list):
        return as_text(content), [], [], []
    texts: list[str] = []
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    reasoning: list[str] = []
    for block in content:
        kind = str(block.get("type")) if isinstance(block, Mapping) else ""
        if kind in _CALL_BLOCKS:
            calls.append(_read_call(block))
        elif kind in _RESULT_BLOCKS:
            answered = _first(block, "tool_use_id", "tool_call_id", "call_id")
            output = _first(block, "content", "output")
            results.append(ToolResult(str(answered) if answered else None, _block_text(output)))
        elif kind in _REASONING_BLOCKS:
            reasoning.append(as_text(_first(block, "thinking", "text", "summary", "data")))
        else:
            texts.append(_block_text(block))
    return "\n".join(text for text in texts if text), calls, results, reasoning


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    inner = function if isinstance(function, Mapping) else call
    call_id = _first(call, "call_id", "id", "tool_call_id")
    return ToolCall(
        str(call_id) if call_id else None,
        str(_first(inner, "name", "tool_name") or "unknown"),
        _first(inner, "arguments", "input", "args"),
    )


def _block_text(block: Any) -> str:
    """Return the words of a block; of an image or a file only its kind and name, never its bytes."""
    if isinstance(block, list):
        return "\n".join(_block_text(item) for item in block)
    if not isinstance(block, Mapping):
        return as_text(block)
    kind = block.get("type")
    if isinstance(block.get("text"), str) and (kind is None or kind in _TEXT_BLOCKS):
        return str(block["text"])
    if not isinstance(kind, str):
        return as_text(block)
    name = _file_name(block)
    return f"[{kind}: {name}]" if name else f"[{kind}]"


def _unwrap_envelope(content: str) -> str:
    if not content.startswith("{") or '"attachments"' not in content:
        return content
    try:
        envelope = json.loads(content)
    except (ValueError, RecursionError):
        # Text that only looks like an envelope is what the user wrote.
        return content
    return _envelope_text(envelope) or content


def _envelope_text(envelope: Mapping[str, Any]) -> str:
    """Return the text and the file names of an attachment envelope, "" if it is none."""
    attachments = envelope.get("attachments")
    if not isinstance(attachments, list) or not isinstance(envelope.get("text"), str):
        return ""
    names = [_file_name(item) or "unnamed" for item in attachments]
    return f"{envelope['text']}\n[attachments: {', '.join(names)}]" if names else str(envelope["text"])


def _file_name(item: Any) -> str:
    if isinstance(item, str):
        # A data URL is the file itself.
        return "" if item.startswith("data:") else item
    if not isinstance(item, Mapping):
        return ""
    name = _first(item, "name", "filename", "file_name", "title", "path", "file_path")
    return name if isinstance(name, str) else ""


def _first(mapping: Mapping[str, Any], *names: str) -> Any:
    return next((mapping[name] for name in names if mapping.get(name) is not None), None)
