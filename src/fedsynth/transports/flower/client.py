"""Flower's client, through which a site answers: the component that a Flower app names.

Rule 1: whatever keeps a node from answering makes its site a lost one, never the run. Rule 2: when a reply leaves a
site tells neither how many rows there are nor what they hold, but in steps of the policy's ``answer_every``.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

import fedsynth
from fedsynth.host.config import SiteConfig, load_site_config
from fedsynth.host.state import answer, wait_until_due
from fedsynth.transports.flower.records import pack, unpack

_log = logging.getLogger("flwr.fedsynth")  # Flower's own log: `flwr log` shows it

client = ClientApp()


@client.query()
def _answer(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer the requests of one message from the site that the node's configuration names."""
    began = time.monotonic()
    every = 1.0
    try:
        config = load_site_config(Path(str(context.node_config["site-config"])))
        every = config.policy.answer_every
        content = pack("replies", _replies(config, message.content))
    except Exception:
        _log.exception("this site could not answer")  # in the site's own log; the server learns nothing of it
        content = RecordDict({"failed": ConfigRecord({})})
    reply = FlowerMessage(content, reply_to=message)
    wait_until_due(began, every)
    return reply


def _replies(config: SiteConfig, content: RecordDict) -> list[bytes]:
    server, addressed = (str(content.config_records["head"][key])[:64] for key in ("fedsynth", "site"))
    why = ""
    if server != fedsynth.__version__:
        why = f"it runs fedsynth {fedsynth.__version__} and the server {server!r}; upgrade both together"
    elif addressed != config.name:
        why = f"its site.toml says {config.name!r}; register its key under that name, or correct the file"
    return answer(config, list(unpack("requests", content)), why)
