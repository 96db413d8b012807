-- Tokens of calls by engine and by what became of them; drafted ones count as rejected until the steps tell what was committed. Prompts are
-- those of calls that were answered. A stage that writes after a gate let the draft pass writes nothing else, but for its first steps.
WITH passed AS (
    SELECT stage, coalesce(max(step_index) FILTER (decision = 'first_steps'), 0) AS first_steps
    FROM steps GROUP BY stage HAVING bool_or(decision = 'unverified')),
told AS (
    SELECT calls.*, calls.error_type IS NOT NULL AS failed, CASE
               WHEN failed OR finished IS NOT TRUE THEN 'lost'
               WHEN purpose = 'draft' THEN 'rejected'
               WHEN purpose IN ('judge', 'trial') THEN 'verification'
               WHEN purpose = 'answer' THEN 'answer'
               WHEN step_index > first_steps THEN 'unverified'
               ELSE 'written' END AS outcome
    FROM calls LEFT JOIN passed USING (stage) LEFT JOIN (SELECT chain_id, finished FROM chains) USING (chain_id))
SELECT engine, outcome, count(*) FILTER (failed) AS failed, sum(output_tokens)::BIGINT AS sampled,
       coalesce(sum(eos_tokens) FILTER (outcome IN ('written', 'unverified', 'answer')), 0)::BIGINT AS cut,
       coalesce(sum(input_tokens) FILTER (NOT failed), 0)::BIGINT AS read,
       coalesce(sum(cached_input_tokens) FILTER (NOT failed), 0)::BIGINT AS cached,
       coalesce(sum(input_tokens) FILTER (NOT failed AND cached_input_tokens IS NULL), 0)::BIGINT AS unstated
FROM told GROUP BY ALL ORDER BY engine, outcome
