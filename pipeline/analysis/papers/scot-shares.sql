-- title: Shares of the time of thinking
-- source: SCoT 4.2
-- systems: SCoT = graph scot; SpecCoT = graph speccot; SpecReason = graph specreason
-- rows: system, models
-- columns: data, metric
-- average: data
-- note: Of the thinking stage: from a chain's first call to the end of its thought, without the answer. At batch sizes above 1 the time includes waiting for other chains.
SELECT run, graph, data, models, percent(thinking_shares['target']) AS target,
       percent(thinking_shares['drafting']) AS drafting, percent(thinking_shares['verification']) AS selection
FROM runs WHERE graph IN ('scot', 'speccot', 'specreason')
