from __future__ import annotations

import json
from typing import Any

import pytest

from squilla_files.dialogue import Message, ToolCall, ToolResult, read_message, read_messages


def read(**entry: Any) -> Message:
    return read_message(entry)


def test_plain_words_are_the_text() -> None:
    assert read(role="user", content="hello") == Message("user", "hello")


@pytest.mark.parametrize("content", [None, "", []])
def test_no_content_is_no_text(content: object) -> None:
    assert read(role="assistant", content=content) == Message("assistant", "")


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c1", "type": "function", "function": {"name": "read", "arguments": {"path": "a"}}},
        {"id": "c1", "name": "read", "arguments": {"path": "a"}},
        {"id": "c1", "name": "read", "input": {"path": "a"}},
        {"tool_call_id": "c1", "tool_name": "read", "args": {"path": "a"}},
    ],
)
def test_a_call_is_read_in_every_shape(call: dict[str, Any]) -> None:
    assert read(role="assistant", content="x", tool_calls=[call]).calls == (ToolCall("c1", "read", {"path": "a"}),)


@pytest.mark.parametrize("kind", ["tool_use", "toolCall", "function_call"])
def test_a_call_may_be_a_block_of_the_content(kind: str) -> None:
    blocks = [{"type": "text", "text": "Reading."}, {"type": kind, "id": "c1", "name": "read", "input": {"path": "a"}}]
    message = read(role="assistant", content=blocks)
    assert message.text == "Reading."
    assert message.calls == (ToolCall("c1", "read", {"path": "a"}),)


def test_a_call_without_id_or_name_is_still_a_call() -> None:
    assert read(role="assistant", content="", tool_calls=[{}, "junk"]).calls == (ToolCall(None, "unknown", None),)


@pytest.mark.parametrize(
    ("entry", "result"),
    [
        ({"role": "tool", "content": "out", "tool_call_id": "c1"}, ToolResult("c1", "out")),
        ({"role": "tool", "content": "out"}, ToolResult(None, "out")),
        ({"role": "user", "content": "out", "tool_call_id": "c1"}, ToolResult("c1", "out")),
        ({"role": "user", "content": "[Tool result read]: out"}, ToolResult(None, "[Tool result read]: out")),
        ({"role": "tool", "content": [{"type": "text", "text": "out"}]}, ToolResult(None, "out")),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "out"}]},
            ToolResult("c1", "out"),
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "out"}]}],
            },
            ToolResult("c1", "out"),
        ),
    ],
)
def test_a_result_is_read_in_every_shape(entry: dict[str, Any], result: ToolResult) -> None:
    message = read_message(entry)
    assert message.results == (result,)
    assert message.text == ""
    assert message.shown == result.text


def test_words_beside_a_result_stay_words() -> None:
    blocks = [{"type": "tool_result", "tool_use_id": "c1", "content": "out"}, {"type": "text", "text": "Now go on."}]
    message = read(role="user", content=blocks)
    assert (message.text, message.results) == ("Now go on.", (ToolResult("c1", "out"),))


@pytest.mark.parametrize("text", ['[tool_call: read {"path": "a"}]', "Done. [Used tool: read]"])
def test_a_text_may_record_a_call(text: str) -> None:
    assert read(role="assistant", content=text).calls_in_text
    assert not read(role="assistant", content="[link](x)").calls_in_text


def test_reasoning_is_kept_apart_from_the_text() -> None:
    message = read(
        role="assistant", content=[{"type": "thinking", "thinking": "hm"}, "Yes."], reasoning_content="so it is"
    )
    assert (message.text, message.reasoning) == ("Yes.", "hm\nso it is")
    assert read(role="assistant", content="Yes.", reasoning_content="hm").reasoning == "hm"


def test_an_attachment_envelope_is_its_text_and_file_names() -> None:
    attachments = [{"name": "a.png", "data": "QUJD"}, {"file_name": "b.pdf"}, "c.txt", "data:image/png;base64,QUJD", 7]
    envelope = {"text": "See these", "attachments": attachments}
    expected = "See these\n[attachments: a.png, b.pdf, c.txt, unnamed, unnamed]"
    assert read(role="user", content=json.dumps(envelope)).text == expected
    assert read(role="user", content=envelope).text == expected


def test_an_envelope_without_attachments_is_its_text() -> None:
    assert read(role="user", content='{"text": "hi", "attachments": []}').text == "hi"


@pytest.mark.parametrize(
    "text",
    [
        '{"text": "cut off", "attachments": [',
        '{"text": 5, "attachments": []}',
        '{"a": ' * 100_000 + '"attachments"',
        '{"other": "attachments"}',
    ],
)
def test_text_that_only_looks_like_an_envelope_is_left_alone(text: str) -> None:
    assert read(role="user", content=text).text == text


def test_of_an_image_only_its_kind_and_name_are_read() -> None:
    blocks = [{"type": "image", "source": {"data": "QUJD"}}, {"type": "file", "filename": "b.pdf", "data": "QUJD"}]
    assert read(role="user", content=blocks).text == "[image]\n[file: b.pdf]"


@pytest.mark.parametrize("content", [5, True, {"a": 1}, [1, {"a": 1}, None], [{"type": {}}], [{"type": "text"}]])
def test_content_of_any_shape_is_read_without_an_error(content: object) -> None:
    assert isinstance(read_messages([{"role": None, "content": content}])[0].text, str)
