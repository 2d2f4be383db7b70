"""Where networks are computed: one setting, which never moves a clipped sum to a GPU by itself."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from tests.command import invoke
from tests.deep.training_world import gradient_sum, local_training

pytest.importorskip("torch", reason="the extra 'deep' is not installed")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedsynth.deep.diffusion import Diffusion
from fedsynth.deep.dpsgd import CHUNK, Tape, split
from fedsynth.deep.encoders import BatchLayout, EncodedBatch
from fedsynth.deep.gan import Critic
from fedsynth.deep.training import GradientSum, Network
from fedsynth.deep.vae import AutoEncoder
from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.privacy.device import VARIABLE, computing_on, device

LAYOUT = BatchLayout((5, 3, 1, 4), (2,))


class OneDevice(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not typed here
    """Refuses operations on tensors of several devices, as a GPU does: "meta" by itself takes some from the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = {one.device.type for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and one.ndim}
        assert len(found) <= 1, f"{func} mixes {found}"
        return func(*args, **kwargs or {})


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which PyTorch says that there is a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("gpu")
def test_clipped_sums_stay_on_the_cpu_unless_a_gpu_is_named(monkeypatch):
    assert device() == "cuda"
    assert device(clipped=True) == "cpu"
    assert gradient_sum().device == "cpu"
    assert local_training((), clip=1.0, batch=0).device == "cpu"
    assert local_training(()).device == "cuda"
    monkeypatch.setenv(VARIABLE, "cuda")
    assert device(clipped=True) == "cuda"
    assert gradient_sum().device == "cuda"
    assert device("cpu") == "cpu"
    monkeypatch.setenv(VARIABLE, "cpu")
    assert device() == "cpu"


@pytest.mark.usefixtures("no_gpu")
def test_a_gpu_that_is_named_and_not_there_is_refused_before_anything_is_asked(monkeypatch):
    assert device() == "cpu"
    GradientSum.require()
    monkeypatch.setenv(VARIABLE, "cuda")
    with pytest.raises(Unsupported, match="no GPU on this machine"):
        GradientSum.require()
    monkeypatch.setenv(VARIABLE, "tpu")
    with pytest.raises(InvalidParameter, match="unknown device 'tpu'; choose one of auto, cpu, cuda"):
        GradientSum.require()


@pytest.mark.usefixtures("gpu")
def test_a_command_sets_the_device_for_itself_alone(monkeypatch):
    with computing_on("cuda"):
        assert device(clipped=True) == "cuda"
    assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, "cpu")
    with computing_on("auto"):
        assert device() == "cpu"
    with pytest.raises(Unsupported, match="here it ends"), computing_on("cuda"):
        raise Unsupported("here it ends")
    assert os.environ[VARIABLE] == "cpu"


@pytest.mark.usefixtures("no_gpu")
def test_the_option_names_a_gpu_that_is_not_there(tmp_path):
    (tmp_path / "rows.csv").write_text("age,income\n" + "30,low\n41,high\n52,low\n" * 20)
    arguments = ["simulate", "--data", str(tmp_path / "rows.csv"), "--epsilon", "1", "--delta", "1e-6"]
    done = invoke([*arguments, "--device", "cuda", "--out", str(tmp_path / "run")])
    assert done.exit_code == 6
    assert not (tmp_path / "run").exists()
    assert VARIABLE not in os.environ


@pytest.mark.parametrize(
    "network",
    [
        Diffusion(width=16, depth=1, steps=20, label=0),
        Diffusion(width=16, depth=1, steps=20, predicts="noise"),
        AutoEncoder((16,), latent=4),
        Critic((16,)),
    ],
    ids=["diffusion", "noise", "vae", "critic"],
)
def test_losses_are_computed_where_the_weights_are(network: Network):
    """On PyTorch's device "meta", which computes shapes alone; no operation mixes it with the CPU."""
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.integers(0, size, CHUNK) for size in LAYOUT.tokens], axis=1)
    losses = network.losses(LAYOUT, EncodedBatch(tokens, rng.random((CHUNK, len(LAYOUT.numbers)))), rng)
    tape = Tape(split(network.initial(LAYOUT, rng), network.shapes(LAYOUT), "meta"), per_row=True)
    with OneDevice():
        loss = losses(tape, torch.arange(CHUNK))
        outputs = [z for _, _, z in (*tape.linears, *tape.embeddings)]
        slopes = torch.autograd.grad(loss.sum(), outputs)
    assert {one.device.type for one in (loss, *slopes)} == {"meta"}
