"""On which device networks are computed: one setting for sites, simulations and samplers.

Nothing here imports PyTorch before a GPU is asked for. The setting is the environment variable ``FEDSYNTH_DEVICE``, so
that threads and the processes of a run share it; the option ``--device`` sets it for one command.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from fedsynth.errors import InvalidParameter, Unsupported

Device = Literal["auto", "cpu", "cuda"]
VARIABLE = "FEDSYNTH_DEVICE"


def device(asked: Device = "auto", *, clipped: bool = False) -> Literal["cpu", "cuda"]:
    """Return the device to compute on: ``asked``, or what the environment says where that is "auto".

    "auto" in both is a GPU where PyTorch finds one, but never for ``clipped`` sums, which are released under a budget:
    that a row's numbers depend on that row alone (:mod:`fedsynth.privacy.dpsgd`) was tested on CPUs only. So a site
    computes them on a GPU only where its steward names it.

    Raises :class:`InvalidParameter` for an unknown name, and :class:`Unsupported` where "cuda" is named and there is
    no GPU: a run must not be slow, or differ in its last bits, without anybody being told.
    """
    named = asked if asked != "auto" else os.environ.get(VARIABLE, "auto")
    if named not in get_args(Device):
        raise InvalidParameter(f"{named!r} is no device; choose among {', '.join(get_args(Device))} ({VARIABLE})")
    if named == "cpu" or (named == "auto" and clipped):
        return "cpu"
    try:
        import torch
    except ImportError as error:
        raise Unsupported("training networks needs PyTorch; pip install 'fedsynth[deep]'") from error
    if torch.cuda.is_available():
        return "cuda"
    if named == "cuda":
        raise Unsupported(f"PyTorch finds no GPU on this machine; choose auto or cpu (--device, or {VARIABLE})")
    return "cpu"


@contextmanager
def computing_on(name: Device) -> Iterator[None]:
    """Set the device while the block lasts; "auto" leaves what the environment says."""
    before = os.environ.get(VARIABLE)
    if name != "auto":
        os.environ[VARIABLE] = name
    try:
        device(clipped=True)  # a name that cannot be is refused before any work
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
