-- The sums of a run that its figures are ratios of: a row for each problem with a chain that finished or counts as right or wrong, added up
-- over its finished chains. Stages that end a chain are `$ending`, those of them that write the thought too `$whole`: such a response is
-- split between thought and answer by tokens. `worked` leaves out pauses. Chains
-- go by the hash of their names, and sums are DOUBLE, so that a long run takes little memory.
WITH of_calls AS (
    SELECT hash(chain_id) AS chain, min(submit_unix_ns - (client_wait_s * 1e9)::BIGINT) AS ready,
           max(end_unix_ns) FILTER (purpose <> 'answer' AND NOT list_contains($whole, stage)) AS thought_end,
           max(end_unix_ns) FILTER (list_contains($whole, stage)) AS response_end,
           arg_max(coalesce(decode_time_s, e2e_latency_s + client_wait_s), end_unix_ns) FILTER (list_contains($whole, stage)) * 1e9 AS decode_ns,
           arg_max(output_tokens, end_unix_ns) FILTER (list_contains($whole, stage)) AS response_tokens,
           sum(output_tokens::DOUBLE) FILTER (list_contains($ending, stage)) AS ending_tokens
    FROM calls GROUP BY chain),
of_responses AS (
    SELECT hash(chain_id) AS chain, sum(step_tokens::DOUBLE) AS response_kept
    FROM steps WHERE step_index > 0 AND list_contains($whole, stage) GROUP BY chain),
of_steps AS (
    SELECT hash(chain_id) AS chain, sum(step_tokens::DOUBLE) FILTER (chosen_candidate IS NOT NULL) AS draft_kept, sum(len(candidate_tokens)::DOUBLE) AS drafts,
           sum(list_sum(candidate_tokens)::DOUBLE) AS drafted, sum(list_max(candidate_tokens)::DOUBLE) AS longest
    FROM steps WHERE num_candidates > 0 GROUP BY chain),
of_rewards AS (
    SELECT chain, sum(mean) AS drafted_reward, count(mean) AS drafted_rewards, sum(picked) AS selected_reward, count(picked) AS selected_rewards
    FROM (SELECT hash(chain_id) AS chain, avg(reward) AS mean, sum(reward) FILTER (selected) AS picked
          FROM rewards WHERE candidate_index IS NOT NULL AND NOT isnan(reward) GROUP BY chain, step_index)
    GROUP BY chain),
of_chains AS (
    SELECT *, CASE WHEN response_tokens IS NULL THEN 0 WHEN steps < 2 THEN thought_tokens ELSE coalesce(response_kept, 0) END AS in_response
    FROM (SELECT *, hash(chain_id) AS chain FROM chains WHERE finished OR counted IS NOT NULL)
         LEFT JOIN of_calls USING (chain) LEFT JOIN of_responses USING (chain) LEFT JOIN of_steps USING (chain) LEFT JOIN of_rewards USING (chain)),
figures AS (
    SELECT hash(problem_id) AS problem, finished, counted, 1 AS problems, chain_time_s AS latency_s, thought_tokens,
           coalesce(ending_tokens, 0) - in_response AS answer_tokens, thought_tokens + answer_tokens AS tokens,
           thought_tokens - coalesce(draft_kept, 0) AS target_tokens,
           (worked(greatest(thought_end, response_end - (decode_ns * (1 - least(in_response / response_tokens, 1)))::BIGINT)) - worked(ready)) / 1e9
               AS thinking_s,
           drafts, drafted, longest, steps, fallback_steps AS fallbacks, unverified_steps AS unverified,
           accepted_steps + fallbacks AS verified, accepted_steps + unverified AS by_draft, verified + unverified AS judged,
           drafted_reward, drafted_rewards, selected_reward, selected_rewards
    FROM of_chains)
SELECT problem, count(*) FILTER (finished) AS chains, count(counted) AS graded, count(*) FILTER (counted) AS "right",
       coalesce(sum(COLUMNS(* EXCLUDE (problem, finished, counted))::DOUBLE) FILTER (finished), 0) AS '\0'
FROM figures GROUP BY problem
