"""Three servers that see nothing: sites deal shares of their tables, and only noisy tables and drawn indices come out.

Replicated secret sharing among three (Araki et al., CCS 2016, doi 10.1145/2976749.2978331): a table x is x1 + x2 + x3
modulo 2^128, and server i has two of the three. Keys and sealed boxes come from :mod:`fedsynth.keys`; `shares` is the
arithmetic; `questions` what the servers are asked, with the checks of public numbers and what a release may cost;
`server` one server's state and steps, and its answers to the coordinator's `calls`; `ideal` all three in one process,
`remote` the connections to three processes; `vault` the coordinator's side over either, and `trust` the trust model. A
deposit is the tables that sites share among the servers, a draw is the private selection of one candidate table by its
index, and a statement says what a server is asked and what its own state is.

    step    to a server              from a server                     who learns what
    ------- ------------------------ --------------------------------- -----------------------------------------------
    begin   the deposit's question   -                                 nobody anything
    take    one site's sealed shares keyed digests of its two shares   whether two servers hold the same share
    keep    the sites that are in    -                                 who is in
    ask     a question, public       its statement, signed             what it was asked, and what was spent
    agree   all three statements     is charged; noisy share, or none  everybody the noisy table: the shares' sum
    draw    -                        (the three among each other)      everybody the index that was drawn, and no score

One server may be curious and collude with any number of sites and with the coordinator. A server that deviates from the
protocol, two that collude, and a site that deals counts which no rows could have are not covered: the last can spoil
results and, by making a sum of squares wrap, a draw's guarantee for others.
"""
