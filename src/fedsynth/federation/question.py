"""Questions: what the head of each says, beside the arrays of its query."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from fedsynth.privacy.release import Release

VERSION = 1
"""Version of the format of all messages."""
HexDigest = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?\\Z")]
"""SHA-256 in hexadecimal, or nothing."""
Verb = Literal["sum", "average", "each", "choose", "deposit"]
Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class QuestionHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of a question: the run, the query without its arrays, the price, and the run's agreement.

    - ``step`` numbers the questions of a run; the same query under another number is another question, charged again.
    - ``verb`` says what is done with the sites' answers, and ``kind`` names the query's class.
    - ``query`` holds the query's encoded fields; it is empty in a head from :func:`read_question`, which returns the
      query itself.
    - ``release`` is the kind of the noise and its price.
    - ``agreement`` is the digest of the run's :class:`~fedsynth.federation.agreement.Agreement`, which has the terms.
    """

    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    run: Name
    step: Number
    verb: Verb
    kind: Name
    query: msgspec.Raw
    release: Release
    agreement: HexDigest
