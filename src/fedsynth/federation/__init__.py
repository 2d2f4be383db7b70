"""How a method asks sites for statistics, and gets back noisy releases that are charged to a privacy budget.

A method calls the verbs of a :class:`~fedsynth.federation.federation.Federation` (such as ``sum``) with a query
(:mod:`~fedsynth.federation.query`). A transport (:mod:`~fedsynth.federation.transport`) carries it to the sites
(:mod:`~fedsynth.federation.site`), and a trust model (:mod:`~fedsynth.federation.trust`) says who adds the noise.
"""
