-- Tokens of calls by engine and by what became of them. A call that neither drafts nor judges writes: before the first step it guides the
-- thought; later it is a fallback, where its stage falls back at all, but for the first steps that the stage writes without drafts; and what
-- writes after a gate let the draft pass writes nothing else.
WITH writers AS (
    SELECT stage, coalesce(max(step_index) FILTER (decision = 'first_steps'), 0) AS first_steps, bool_or(decision = 'fallback') AS falls_back,
           bool_or(decision = 'unverified') AS unverified
    FROM steps GROUP BY stage),
told AS (
    SELECT calls.*,
           CASE WHEN error_type IS NOT NULL THEN 'retried'
                WHEN over.finished IS NULL THEN 'unfinished'
                WHEN NOT over.finished THEN 'lost_chains'
                WHEN purpose = 'draft' THEN 'rejected'
                WHEN purpose = 'judge' THEN 'verification'
                WHEN purpose = 'answer' THEN 'answer'
                WHEN purpose = 'trial' THEN 'trial'
                WHEN step_index = 0 THEN 'guidance'
                WHEN unverified AND step_index > first_steps THEN 'unverified'
                WHEN falls_back AND step_index > first_steps THEN 'fallback'
                ELSE 'written' END AS outcome
    FROM calls LEFT JOIN writers USING (stage) LEFT JOIN (SELECT chain_id, finished FROM chains) AS over USING (chain_id))
SELECT engine, outcome, purpose = 'draft' AS drafts, count(*) AS calls, sum(output_tokens)::BIGINT AS sampled, sum(eos_tokens)::BIGINT AS ended,
       sum(input_tokens)::BIGINT AS read, coalesce(sum(cached_input_tokens), 0)::BIGINT AS cached,
       coalesce(sum(input_tokens) FILTER (cached_input_tokens IS NULL), 0)::BIGINT AS unstated
FROM told GROUP BY ALL ORDER BY engine, outcome
