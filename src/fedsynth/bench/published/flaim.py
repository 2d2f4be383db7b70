"""AugFLAIM with exact marginals of all sites, NOT PRIVATE."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedsynth.bench.published import require_not_private
from fedsynth.cliques import downward_closure
from fedsynth.federation.query import Counts
from fedsynth.methods.flaim import PICKED, FLAIMOptions, FLAIMState
from fedsynth.methods.flaim_scores import on_grid
from fedsynth.methods.measure import workload_order
from fedsynth.methods.registry import method

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer


@method("augflaim-oracle", adaptive=True, private=False, exempt=PICKED, order=workload_order)
@dataclass(frozen=True)
class AugFLAIMOracle(FLAIMOptions):
    """NOT PRIVATE: FLAIM with scores corrected by the exact marginals of all sites.

    It shows what :class:`~fedsynth.methods.flaim.AugFLAIM` could reach if it knew them. The further options are those
    of :class:`~fedsynth.methods.flaim.FLAIMOptions`.

    Parameters
    ----------
    not_private
        Must be true: it says that the rows are not protected.
    """

    not_private: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        require_not_private(self, self.not_private)
        super().__post_init__()

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method with exact marginals: NOT PRIVATE."""
        from fedsynth.federation.federation import EXACT

        run = FLAIMState.start(federation, self)
        closure = downward_closure(run.workload)
        tables = federation.sum(Counts.of(len(run.ones), closure), EXACT).tables
        truth = {q: table / max(1.0, table.sum()) for q, table in zip(closure, tables, strict=True)}

        rounds = run.cohorts("AugFLAIM (oracle) rounds", 2 * self.steps - 1, self.steps, first=len(run.ones))
        for cohort, megabytes, share_measure, share_pick in rounds:
            run.start_model(cohort, share_measure)
            candidates = run.candidates(1, megabytes)
            proxy = on_grid([truth[q] for q in candidates])
            picks = run.pick(cohort, candidates, share_pick, share_measure, by_candidate=proxy)
            run.measure(cohort, run.together(picks), share_measure)
            run.refit(self.iterations)
        return run.result("augflaim-oracle")
