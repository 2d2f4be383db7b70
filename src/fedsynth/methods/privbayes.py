"""PrivBayes on a vault: the central baseline, which draws each column's parents by the exponential mechanism.

Source: Zhang, Cormode, Procopiuc, Srivastava & Xiao (TODS 2017, doi 10.1145/3134428).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import Clique, all_marginals
from fedsynth.errors import Unsupported, positive, whole
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import measure_in_vault, network_order, shares, total_records
from fedsynth.methods.registry import method
from fedsynth.methods.survey import SurveyOption, with_survey

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.federation.vault import CandidateScores
    from fedsynth.models.bayes_net import BayesianNetwork
    from fedsynth.models.synthesizer import Synthesizer

Array = NDArray[np.float64]
_MOST_CELLS = 30_000_000  # of all deposited tables together: a quarter of a gigabyte
_ROWS = 100_000  # rows sampled from the network so far, to estimate the joint tables of parents


LARGER = 4.0  # the groups are planned for tables with this many times the cells of a pair's table


@method("privbayes", needs_vault=True, adaptive=True, order=network_order)
@dataclass(frozen=True)
class PrivBayes(SurveyOption):
    """A Bayesian network grown column by column: each new column and its parents are drawn by their dependence.

    The score is PrivBayes's own R, the L1 distance of a table from independence of column and parents, in records and
    not halved (with three servers the L2 distance). Independence is computed from *released* numbers (the column's own
    table, and the parents' joint table in the network so far), so that one record moves a score by 1 (by 3 against
    exact tables, as published). Mutual information, the first choice of the paper and of the FedBN thesis, moves by
    about ln n nats per record while its range is a small multiple of n: its noise relative to its range is an order of
    magnitude larger. DataSynthesizer, a published implementation, uses a sensitivity that belongs to another definition
    of neighbouring tables, and does not charge the budget for its 1-way tables.

    Parameters
    ----------
    degree
        Largest number of parents of a column.
    one_share
        Share of the budget for the 1-way tables; the mechanism's draws and the tables of the parents share the rest.
    select_share
        Share of that rest for the draws.
    useful
        A column's table with parents is a candidate only if its mean count is at least this many standard deviations of
        the noise (theta in the paper).
    bins_share
        As in :class:`~fedsynth.methods.survey.SurveyOption`.
    """

    degree: int = 2
    one_share: float = 0.1
    select_share: float = 0.3
    useful: float = 4.0

    def __post_init__(self) -> None:
        whole(degree=self.degree)
        positive(useful=self.useful)
        shares(one_share=self.one_share, select_share=self.select_share)
        super().__post_init__()

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["parents"]`` are each column's parents, as column positions.

        Also raises :class:`Unsupported` if the tables of ``degree + 1`` columns do not fit in memory, once the 1-way
        tables are measured.
        """
        from fedsynth.models.synthesizer import Synthesizer

        federation.require_vault()
        rng, count, share = federation.rng, len(federation.schema.stored), self.share_after_survey(federation)
        ones = all_marginals(count, 1)
        first = self.one_share * share if count > 1 else share
        table_share = (1 - self.select_share) * (share - first) or share
        domain = self.surveyed(federation, count - 1, table_share, LARGER)
        vault = federation.deposit(domain.counts(ones), first)
        known = with_survey(domain, measure_in_vault(vault, domain, ones, first))
        total = total_records(federation, known)
        tables = {one.clique: one.values for one in known}
        order = [int(rng.integers(count))]
        parents: dict[int, Clique] = {order[0]: ()}

        if count > 1:
            each = (share - first) / (count - 1)
            select, measure = self.select_share * each, (1 - self.select_share) * each
            std = vault.std(measure)
            most = total / (self.useful * std) if std else math.inf
            vault = federation.deposit(domain.counts(_deposited(domain, self.degree, most)), share - first)
        while len(order) < count:
            candidates = _candidates(domain, order, self.degree, most)
            rows = _network(domain, order, parents, tables, total).sample(_ROWS, rng)
            score = _dependence(domain, candidates, rows, tables, total, std)
            column, able = candidates[vault.select(score, select)]
            clique = tuple(sorted((column, *able)))
            ((tables[clique],), _) = vault.open(domain.counts([clique]), measure)
            parents[column] = able
            order.append(column)
            federation.progress("PrivBayes columns", len(order), count)

        network = _network(domain, order, parents, tables, total)
        info = {"method": "privbayes", "parents": [list(parents[column]) for column in range(count)]}
        return Synthesizer(federation.schema, domain.held, network, info)


def _deposited(domain: Domain, degree: int, most: float) -> list[Clique]:
    """Return the maximal cliques, of one column or of up to ``degree + 1`` with at most ``most`` cells, to deposit.

    Raises :class:`Unsupported` if the tables would not fit in memory.
    """
    deposited: list[Clique] = []
    covered: set[Clique] = set()
    for size in range(min(degree + 1, len(domain.sizes)), 0, -1):
        for clique in itertools.combinations(range(len(domain.sizes)), size):
            if clique not in covered and (size == 1 or math.prod(domain.shape(clique)) <= most):
                deposited.append(clique)
            elif clique not in covered:
                continue
            covered.update(itertools.combinations(clique, size - 1))
    if sum(math.prod(domain.shape(clique)) for clique in deposited) > _MOST_CELLS:
        raise Unsupported(
            f"the tables of {degree + 1} columns each do not fit in the vault's memory; set degree = {degree - 1}, "
            "give the schema fewer bins, or use FedChowLiu"
        )
    return deposited


def _candidates(domain: Domain, order: Sequence[int], degree: int, most: float) -> list[tuple[int, Clique]]:
    """Return every new column with every useful set of at most ``degree`` parents among the placed columns."""
    placed = sorted(order)
    new = [column for column in range(len(domain.sizes)) if column not in order]
    return [
        (column, able)
        for column in new
        for size in range(min(degree, len(placed)) + 1)
        for able in itertools.combinations(placed, size)
        if not able or math.prod(domain.shape((column, *able))) <= most
    ]


def _network(
    domain: Domain, order: Sequence[int], parents: dict[int, Clique], tables: dict[Clique, Array], total: float
) -> BayesianNetwork:
    """Return the network so far, in which columns not yet placed are independent."""
    from fedsynth.models.bayes_net import BayesianNetwork
    from fedsynth.models.structure import Structure

    rest = [column for column in range(len(domain.sizes)) if column not in order]
    structure = Structure((*order, *rest), tuple(parents.get(column, ()) for column in range(len(domain.sizes))))
    return BayesianNetwork.of_tables(structure, tables, total, zeros=domain.zeros)


def _dependence(
    domain: Domain,
    candidates: Sequence[tuple[int, Clique]],
    rows: Sequence[NDArray[Any]],
    tables: dict[Clique, Array],
    total: float,
    std: float,
) -> CandidateScores:
    """Return the score of each candidate: the distance of its table from independence of the column and its parents.

    The distances expected from noise of ``std`` per cell and from the finite number of sampled ``rows`` are subtracted.
    """
    from fedsynth.federation.vault import CandidateScores
    from fedsynth.models.gum import simplex

    cliques, expected, noise = [], [], []
    joint: dict[Clique, Array] = {(): np.ones(())}
    for column, parents in candidates:
        if parents not in joint:
            shape = domain.shape(parents)
            cells = np.ravel_multi_index([rows[at] for at in parents], shape)
            joint[parents] = np.bincount(cells, minlength=math.prod(shape)).reshape(shape) / len(cells)
        own = simplex(tables[column,], total)
        table = np.multiply.outer(own, joint[parents])
        clique = tuple(sorted((column, *parents)))
        cliques.append(clique)
        expected.append(np.moveaxis(table, 0, clique.index(column)))
        drawn = total * np.sqrt(joint[parents] / _ROWS).sum() if parents else 0.0
        noise.append((std * table.size + drawn) / math.sqrt(table.size))
    return CandidateScores(tuple(cliques), tuple(expected), np.ones(len(cliques)), np.array(noise))
