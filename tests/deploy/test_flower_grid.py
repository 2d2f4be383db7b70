"""Replies that arrive in parts: what the server takes of them, and what a site sends again."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.message.message import remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse, PushObjectRequest, PushObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.run import Run

from fedsynth.deploy.certificates import Authority
from fedsynth.deploy.flower.grid import FlowerGrid
from fedsynth.deploy.flower.node import _pushed_once


@dataclass
class Link:
    """A SuperLink that hands out each reply's head once, and those of its parts that are neither late nor gone."""

    replies: dict[str, Message]
    late: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    confirmed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts = {asked: parts_of(reply) for asked, reply in self.replies.items()}

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        found = [self.replies.pop(asked) for asked in sorted(request.message_ids) if asked in self.replies]
        heads = [message_to_proto(remove_content_from_message(reply)) for reply in found]
        return PullAppMessagesResponse(
            messages_list=heads, message_object_trees=[get_object_tree(one) for one in found]
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        asked, parts = next((asked, parts) for asked, parts in self.parts.items() if request.object_id in parts)
        if asked in self.gone:
            return PullObjectResponse(object_found=False)
        here = asked not in self.late
        return PullObjectResponse(
            object_found=True, object_available=here, object_content=parts[request.object_id] if here else b""
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


def reply_to(asked: str) -> Message:
    """Return a reply to the message with this id."""
    fields = {"group_id": "", "created_at": 1.0, "ttl": 60.0, "message_type": "query"}
    metadata = Metadata(run_id=1, message_id="", src_node_id=7, dst_node_id=1, reply_to_message_id=asked, **fields)  # type: ignore[arg-type]
    message = make_message(metadata, content=RecordDict({"of": ConfigRecord({"asked": asked})}))
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def parts_of(reply: Message) -> dict[str, bytes]:
    """Return the parts that Flower sends, by id."""
    with no_object_id_recompute():
        return {name: one.deflate() for name, one in get_all_nested_objects(reply).items()}


def grid_on(link: Link, monkeypatch: pytest.MonkeyPatch) -> FlowerGrid:
    """Return the grid of a run, on this SuperLink."""
    grid = FlowerGrid("127.0.0.1:9", Authority.create().text.encode(), "token")
    grid.set_run(Run.create_empty(1))
    monkeypatch.setattr(FlowerGrid, "_runtime_client", link)
    return grid


def answered(found: Any) -> list[str]:
    return sorted(str(message.content.config_records["of"]["asked"]) for message in found)


def test_a_reply_that_has_not_arrived_whole_keeps_no_other_back(monkeypatch):
    """Flower's own grid waited here for three minutes, until the SuperLink gave the first reply up."""
    link = Link({asked: reply_to(asked) for asked in ("first", "second")}, late={"first"})
    grid = grid_on(link, monkeypatch)
    assert answered(grid.pull_messages(["first", "second"])) == ["second"]
    assert answered(grid.pull_messages(["first"])) == []
    link.late.clear()
    assert answered(grid.pull_messages(["first"])) == ["first"]
    assert answered(grid.pull_messages(["first"])) == []
    assert len(set(link.confirmed)) == 2


def test_a_reply_that_was_given_up_is_an_error_and_one_that_nobody_wants_is_forgotten(monkeypatch):
    link = Link({asked: reply_to(asked) for asked in ("first", "second")}, late={"first", "second"})
    grid = grid_on(link, monkeypatch)
    assert list(grid.pull_messages(["first", "second"])) == []
    link.late.clear()
    link.gone.add("first")
    (told,) = grid.pull_messages(["first"])
    assert (told.error.code, told.metadata.reply_to_message_id) == (ErrorCode.MESSAGE_UNAVAILABLE, "first")
    assert list(grid.pull_messages(["second"])) == []
    assert link.confirmed == []


def test_a_part_that_is_pushed_again_after_its_answer_was_lost_is_there(monkeypatch):
    """The SuperLink, which had it, said that it did not store it, and the site gave the whole reply up."""
    stored: list[str] = []

    def push_object(request: PushObjectRequest) -> PushObjectResponse:
        stored.append(request.object_id)
        return PushObjectResponse(stored=stored.count(request.object_id) == 1)

    push = _pushed_once(SimpleNamespace(PushObject=push_object))  # type: ignore[arg-type]
    part = PushObjectRequest(object_id="part")
    assert push(part).stored
    assert push(part).stored
    stored.append("other")
    assert not push(PushObjectRequest(object_id="other")).stored
