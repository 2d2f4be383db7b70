"""Secure aggregation: sites mask their answers, and masks cancel in the total only.

The protocol is that of Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS
2017 (doi 10.1145/3133956.3133982, figure 4), with the parts against a malicious server: five turns, each with one
event from the server to a site and one answer; beyond 64 sites, where that is safe, on a sparse graph like that of
Bell et al., CCS 2020 (doi 10.1145/3372297.3417885). `site` is a site's end and the trust model, `server` the server's
end, `session` what all of them agree on, `graph` who is whose neighbour, and why that is enough; `masking` and `shamir`
are the cryptography.

    turn a site has taken event      answer   what the site does                              round of the paper
    ---- ---------------- ---------- -------- ----------------------------------------------- ---------------------
    0    nothing          none       Keys     signs its public key of the run, for this sum   AdvertiseKeys
    1    nothing          ShareKeys  Boxes    seals shares of its two secrets for neighbours  ShareKeys
    2    ShareKeys        MaskAnswer Values   answer + all of its noise + masks; is charged   MaskedInputCollection
    3    MaskAnswer       Approve    Approval signs which sites' answers are in the sum       ConsistencyCheck
    4    Approve          Unmask     Shares   opens masks and excess noise of that total      Unmasking

"Is charged" means that the question is charged to the site's privacy budget. A site keeps the events of turns 1 to 3,
and its answers. The same event again gets the same answer. Another one in its place gets that answer too, or is
refused; one that the table does not have is refused.
"""
