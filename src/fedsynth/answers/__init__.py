"""Declared questions: what a run is asked beside its table, answered with intervals under the run's budget.

``declared`` reads them from settings, ``questions`` says what each kind asks and how its interval follows, ``asking``
puts them to the sites around a method, ``results`` are the answers, and ``released`` answers what was not declared.
"""
