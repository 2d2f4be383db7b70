"""The kinds of saved models of this feature, as :func:`fedsynth.models.synthesizer.saved_kinds` finds them."""

MODELS: dict[str, str] = {}
AXES = {"mixture": "fedsynth.bench.published.mixture:TwoAxes"}
