"""How a method asks sites for statistics, and gets back noisy releases that are charged to a privacy budget.

A method that makes synthetic data calls the verbs (such as ``sum``) of a
:class:`~fedsynth.federation.federation.Federation` with a query (:mod:`~fedsynth.federation.query`). A transport
(:mod:`~fedsynth.federation.transport`) carries the query to the sites (:mod:`~fedsynth.federation.site`), and a trust
model (:mod:`~fedsynth.federation.trust`) says who adds the noise.
"""
