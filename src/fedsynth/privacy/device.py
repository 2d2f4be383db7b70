"""The device on which networks are evaluated: one setting for sites, simulations and samplers.

This module imports PyTorch only to look for a GPU. The setting is the environment variable ``FEDSYNTH_DEVICE``, which
the threads and processes of a run share; the option ``--device`` sets it for one command.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from fedsynth.errors import InvalidParameter, Unsupported, from_extra

Device = Literal["auto", "cpu", "cuda"]
VARIABLE = "FEDSYNTH_DEVICE"


def device(asked: Device = "auto", *, clipped: bool = False) -> Literal["cpu", "cuda"]:
    """Return the device to evaluate networks on: ``asked``, or the environment's setting if that is "auto".

    If both are "auto", the device is a GPU if PyTorch finds one. This does not apply to ``clipped`` sums
    (:func:`~fedsynth.deep.dpsgd.clipped_sum`), which are released under a budget: that a row's numbers depend on that
    row alone (:mod:`fedsynth.deep.dpsgd`) was tested only on CPUs, so a site computes these sums on a GPU only if
    ``asked`` or the environment says "cuda".

    Raises :class:`InvalidParameter` for an unknown name, and :class:`Unsupported` if PyTorch is not installed (unless
    the device is "cpu"), or if "cuda" is named and there is no GPU: a run must not be slow, or differ in its last bits,
    without notice.
    """
    named = asked if asked != "auto" else os.environ.get(VARIABLE, "auto")
    if named not in get_args(Device):
        raise InvalidParameter(f"unknown device {named!r}; choose one of {', '.join(get_args(Device))} ({VARIABLE})")
    if named == "cpu" or (named == "auto" and clipped):
        return "cpu"
    with from_extra("deep", "training networks needs PyTorch"):
        import torch
    if torch.cuda.is_available():
        return "cuda"
    if named == "cuda":
        raise Unsupported(f"PyTorch finds no GPU on this machine; choose auto or cpu (--device, or {VARIABLE})")
    return "cpu"


@contextmanager
def computing_on(name: Device) -> Iterator[None]:
    """Make :func:`device` use ``name`` within a ``with`` block; "auto" keeps the environment's setting.

    It sets ``FEDSYNTH_DEVICE`` for this process and its children, and restores it on exit. Raises the errors of
    :func:`device`.
    """
    before = os.environ.get(VARIABLE)
    if name != "auto":
        os.environ[VARIABLE] = name
    try:
        device(clipped=True)  # refuses an unknown name before any work is done
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
