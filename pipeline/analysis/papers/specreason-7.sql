-- title: Mean utility score of speculated steps, by their reward from a process reward model
-- source: SpecReason figure 7, section 5.4
-- systems: SpecReason = graph specreason
-- rows: metric
-- columns: data, models
-- note: All speculated steps, accepted and rejected ones. Needs `pipeline score RUN --prm FILE`.
SELECT run, graph, data, models, agreement.means[1] AS "[0.0, 0.1)", agreement.means[2] AS "[0.1, 0.2)",
       agreement.means[3] AS "[0.2, 0.3)", agreement.means[4] AS "[0.3, 0.4)", agreement.means[5] AS "[0.4, 0.5)",
       agreement.means[6] AS "[0.5, 0.6)", agreement.means[7] AS "[0.6, 0.7)", agreement.means[8] AS "[0.7, 0.8)",
       agreement.means[9] AS "[0.8, 0.9)", agreement.means[10] AS "[0.9, 1.0]",
       plain(agreement.rank_correlation) AS "rank correlation", plain(agreement.steps) AS steps
FROM runs WHERE graph = 'specreason'
