"""Flower's access to the nodes, which never waits for a reply that has not arrived whole.

Flower's own, :class:`HttpGrid`, waits up to two hours for the parts of a reply whose head has arrived, and takes no
other site's reply meanwhile. A site that is cut off while it sends, or that sends a head alone, would stall a run
beyond every deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flwr.app import Error, Message
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid import HttpGrid


@dataclass
class _Arriving:
    """A reply whose head has arrived: its ``metadata``, the ids of its ``parts``, and those that are here."""

    metadata: Metadata
    parts: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)


class FlowerGrid(HttpGrid):
    """Flower's access to the nodes over the SuperLink's Runtime API, without waiting for parts of replies."""

    def __init__(self, address: str, certificates: bytes, token: str) -> None:
        """Connect to nothing yet; ``certificates`` (PEM) vouch for the SuperLink, ``token`` is the task's."""
        super().__init__(address, insecure=False, root_certificates=certificates, token=token)
        self._arriving: dict[str, _Arriving] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the messages of these ids that are here as a whole.

        A reply whose parts are not all at the SuperLink is left for a later call. For one whose parts the SuperLink has
        given up, the error MESSAGE_UNAVAILABLE is returned. Replies to other messages are forgotten.
        """
        wanted, client, run = set(message_ids), self._runtime_client, self.run.run_id
        self._arriving = arriving = {asked: one for asked, one in self._arriving.items() if asked in wanted}
        unheard = wanted - arriving.keys()
        asked_for = PullAppMessagesRequest(message_ids=unheard)
        found = client.PullMessages(asked_for) if unheard else PullAppMessagesResponse()
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            metadata = message_from_proto(head).metadata
            parts = [part.object_id for part in iterate_object_tree(tree)]
            arriving[metadata.reply_to_message_id] = _Arriving(metadata, parts)
        pull = make_pull_object_fn_protobuf(client.PullObject, self.node, run)
        messages = []
        for asked, one in list(arriving.items()):
            try:
                for part in one.parts:
                    if part not in one.contents:
                        one.contents[part] = pull(part)
            except ObjectUnavailableError:
                continue
            except ObjectPullError as error:
                del arriving[asked]
                messages.append(make_message(one.metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, str(error))))
                continue
            del arriving[asked]
            number = one.metadata.message_id
            client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=number)
            )
            whole = inflate_object_from_contents(number, one.contents)
            assert isinstance(whole, Message)
            whole.metadata.__dict__["_message_id"] = number
            messages.append(whole)
        return messages
