"""The kinds of saved models of this feature, as :func:`fedsynth.models.synthesizer.saved_kinds` finds them."""

MODELS = {
    "vae": "fedsynth.deep.vae:TabularVAE",
    "gan": "fedsynth.deep.gan:TabularGAN",
    "diffusion": "fedsynth.deep.diffusion:TabularDiffusion",
}
AXES: dict[str, str] = {}
