"""What a person says about a pack: title, publisher, licence and the like, kept in the run's folder."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import tomli_w

from fedsynth.errors import InvalidParameter
from fedsynth.files import load_toml, write_whole
from fedsynth.runs.folder import RunFolder
from fedsynth.settings import Settings, read_settings

_ADDRESS = r"https?://[A-Za-z0-9._~:/?#@!$&()*+,;=%-]+"  # RFC 3986, but for brackets and the apostrophe
_LICENCE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9.+-]*|{_ADDRESS}")
_REQUIRED = ("title", "publisher", "licence")
_COMMONS = re.compile(r"CC-(BY(?:-NC)?(?:-SA|-ND)?)-(\d\.\d)")


class PackDetails(Settings, frozen=True, kw_only=True):
    """What is asked of whoever publishes a run; nothing of it follows from the run.

    ``date`` is the day of the first publication (ISO 8601). Raises :class:`~fedsynth.errors.InvalidParameter` for an
    empty title or publisher, for text of several lines, for a licence that is neither an identifier nor an address, and
    for an invalid address.
    """

    title: str
    """Title of the synthetic table, in quotes. Required, the first time."""
    publisher: str
    """Organisation that publishes the table and answers for it. Required, the first time."""
    licence: str
    """Licence of the pack: an identifier of SPDX, such as CC-BY-4.0, or the address of the licence's text.
    Required, the first time."""
    description: str = ""
    """What the real rows are about, in a sentence or two. Default: the title."""
    purpose: str = ""
    """What the table is meant for, and what it is not. Default: not stated."""
    region: str = ""
    """Region that the rows describe, or whose law applies. Default: not stated."""
    contact: str = ""
    """Address (e-mail or https://) for questions about the table. Default: none."""
    url: str = ""
    """Address (https://) at which the pack will be found, which catalogues name. Default: none; they name its files."""
    date: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.__struct_fields__:
            if not getattr(self, name).isprintable():
                raise InvalidParameter(f"--{name} has a line break or another control character; write it on one line")
            if name in _REQUIRED and not getattr(self, name).strip():
                raise InvalidParameter(f"--{name} is empty; a pack has to say it")
        if not _LICENCE.fullmatch(self.licence):
            raise InvalidParameter(
                f"--licence {self.licence}: give an identifier of https://spdx.org/licenses, such as CC-BY-4.0, or the "
                "address (https://) of the licence's text"
            )
        if self.url and not re.fullmatch(_ADDRESS, self.url):
            raise InvalidParameter(f"--url {self.url}: give an address that begins with https://")

    @property
    def licence_url(self) -> str:
        """The address of the licence's text."""
        if "://" in self.licence:
            return self.licence
        if self.licence == "CC0-1.0":
            return "https://creativecommons.org/publicdomain/zero/1.0/"
        if commons := _COMMONS.fullmatch(self.licence):
            return f"https://creativecommons.org/licenses/{commons[1].lower()}/{commons[2]}/"
        return f"https://spdx.org/licenses/{self.licence}.html"

    @property
    def citation(self) -> str:
        """The table as it is cited."""
        where = f" {self.url}" if self.url else ""
        return f"{self.publisher} ({self.date[:4]}): {self.title}. Synthetic table, made with fedsynth.{where}"

    @property
    def about(self) -> str:
        """The description, by default the title."""
        return self.description or self.title


def read_details(run: RunFolder, given: Mapping[str, Any]) -> PackDetails:
    """Return what is said about the pack of a run: what was ``given`` now, else what its folder keeps.

    Raises :class:`~fedsynth.errors.InvalidParameter` if something required was never said, which the message names.
    """
    kept = load_toml(run.details_file) if run.details_file.is_file() else {}
    content = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), **kept, **given}
    if lacking := [name for name in _REQUIRED if name not in content]:
        examples = {"title": '--title "Stays 2024, synthetic"', "publisher": '--publisher "Health Office"'}
        asked = ", ".join(examples.get(name, "--licence CC-BY-4.0") for name in lacking)
        raise InvalidParameter(
            f"a pack says its {', '.join(lacking)}, and nobody told: add {asked}; the run's folder keeps it for the "
            "next time"
        )
    return read_settings(PackDetails, content, "" if given else str(run.details_file), lambda path: f"--{path[0]}")


def keep_details(run: RunFolder, details: PackDetails) -> None:
    """Write what is said about the pack into the run's folder, so that the same pack can be made again."""
    run.details_file.parent.mkdir(exist_ok=True)
    content = {name: value for name, value in msgspec.to_builtins(details).items() if value}
    write_whole(run.details_file, tomli_w.dumps(content))
