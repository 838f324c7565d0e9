"""The dashboard of the fleet: what prefix reuse saves, and whether the fleet keeps up."""

from panels import H, R, W, average, lines, number, page, percentile_by, quantiles, share

FLEET = page(
    "warmpath-fleet",
    "Warmpath: fleet",
    "What prefix reuse saves, and whether the fleet keeps up.",
    (
        "Prefix reuse",
        [
            number(
                "Prefix hit ratio",
                "Reused prompt tokens as a share of all prompt tokens: the latest rate.",
                "percentunit",
                share(R + "cached_tokens_total", R + "prompt_tokens_total"),
            ),
            number(
                "Predicted",
                "Reuse that the routers predicted, in whole blocks. If it is far above the hit ratio, see the runbook of prediction errors.",
                "percentunit",
                share(R + "predicted_cached_tokens_total", R + "prompt_tokens_total"),
            ),
            number(
                "Ceiling",
                "Share of each prompt that the worker with the most of it held: the hit ratio if routing followed nothing but the cache.",
                "percentunit",
                share(R + "cacheable_tokens_total", R + "prompt_tokens_total"),
            ),
            number(
                "Tokens saved",
                "Prompt tokens that workers reused instead of computing them, in the range shown.",
                "short",
                f"sum(increase({W}prefix_cache_tokens_total{{}}[$__range]))",
            ),
            number(
                "Seconds saved",
                "Time that computing the reused tokens would have taken, at each worker's own measured prefill rate, in the range shown.",
                "s",
                f"sum(increase({W}saved_prefill_seconds_total{{}}[$__range]))",
            ),
            number(
                "Time to first byte",
                "95th percentile of all answers, at the routers.",
                "s",
                f"histogram_quantile(0.95, sum by (le) (rate({R}ttfb_seconds_bucket{{}}[])))",
            ),
            lines(
                "Hit ratio",
                "Reused, predicted and held share of prompt tokens, over all routers.",
                "percentunit",
                (share(R + "cacheable_tokens_total", R + "prompt_tokens_total"), "held by some worker"),
                (share(R + "cached_tokens_total", R + "prompt_tokens_total"), "reused"),
                (share(R + "predicted_cached_tokens_total", R + "prompt_tokens_total"), "predicted"),
            ),
            lines(
                "Prefill spent and saved",
                "Seconds of prefill that requests took, and seconds that reuse saved, per second, of all workers.",
                "s",
                (f"sum(rate({W}prefill_seconds_total{{}}[]))", "spent"),
                (f"sum(rate({W}saved_prefill_seconds_total{{}}[]))", "saved"),
            ),
            lines(
                "Hit ratio by worker",
                "Reused share of the prompt tokens that each worker started.",
                "percentunit",
                (share(W + "prefix_cache_tokens_total", W + "prompt_tokens_total", " by (instance)"), "{{instance}}"),
            ),
            lines(
                "Hit ratio by model",
                "Reused share of the prompt tokens of each model.",
                "percentunit",
                (
                    f"sum by (model) (rate({W}prefix_cache_tokens_total{{}}[]) * on (job, instance) group_left (model) {W}info{{}})"
                    f" / sum by (model) (rate({W}prompt_tokens_total{{}}[]) * on (job, instance) group_left (model) {W}info{{}})",
                    "{{model}}",
                ),
            ),
            lines(
                "Hit ratio by tier",
                "Share of all prompt tokens that came from slots (resident), memory and disk.",
                "percentunit",
                (
                    f"sum by (tier) (rate({W}prefix_cache_tokens_total{{}}[]))"
                    f" / on () group_left () sum(rate({W}prompt_tokens_total{{}}[]))",
                    "{{tier}}",
                ),
            ),
            lines(
                "Evicted tokens",
                "Tokens whose state was evicted from a tier. `capacity`: other state needed the room; `over_share`: another tenant's did.",
                "short",
                (
                    f"sum by (tier, reason) (rate({W}cache_evicted_tokens_total{{}}[]))",
                    "{{tier}}: {{reason}}",
                ),
            ),
            lines(
                "Broken prefixes",
                "Chats that changed earlier messages, by the role of the changed message, per second. No fleet can reuse what follows.",
                "cps",
                (f"sum by (role) (rate({R}prefix_breaks_total{{}}[]))", "{{role}}"),
            ),
        ],
    ),
    (
        "Latency and load",
        [
            lines(
                "Time to first byte, at the routers",
                "From a request's arrival to the first byte of its answer.",
                "s",
                *quantiles(R + "ttfb_seconds"),
            ),
            lines("Time to first token, at the workers", "The same without the router.", "s", *quantiles(W + "ttft_seconds")),
            lines("Time per output token", "Time per token of an answer after the first.", "s", *quantiles(W + "tpot_seconds")),
            lines(
                "Time to first byte by reuse, median",
                "At the routers, by the reused share of the prompt: none, some, half or more, most (nine tenths).",
                "s",
                percentile_by(0.5, R + "ttfb_seconds", "cached"),
            ),
            lines(
                "Time to first byte by reuse, 95%",
                "The same, the 95th percentile.",
                "s",
                percentile_by(0.95, R + "ttfb_seconds", "cached"),
            ),
            lines(
                "Time per output token by reuse, 95%",
                "At the routers, of streamed answers.",
                "s",
                percentile_by(0.95, R + "tpot_seconds", "cached"),
            ),
            lines(
                "Time in workers' queues",
                "From the tokenized prompt to its slot: waits for a slot, for a prefix, for reads from disk.",
                "s",
                *quantiles(W + "queue_seconds"),
            ),
            lines(
                "Requests",
                "Requests by status.",
                "reqps",
                (f"sum by (status) (rate({R}requests_total{{}}[]))", "{{status}}"),
            ),
            lines(
                "Busy slots",
                "Share of each worker's slots that run a sequence.",
                "percentunit",
                (f"{W}slots_busy{{}} / {W}slots{{}}", "{{instance}}"),
            ),
            lines(
                "Waiting",
                "Requests that wait in routers because no worker can start them soon, and sequences that wait in workers for a slot.",
                "short",
                (f"sum({R}queue_requests{{}})", "in routers"),
                (f"sum({W}queue_sequences{{}})", "in workers"),
            ),
            lines(
                "Requests by worker",
                "Requests of all routers at each worker.",
                "short",
                (f"sum by (worker) ({R}worker_requests_in_flight{{}})", "{{worker}}"),
            ),
            lines(
                "Route reasons",
                "Decisions by reason, per second.",
                "cps",
                (f"sum by (reason) (rate({R}routes_total{{}}[]))", "{{reason}}"),
            ),
            lines(
                "Refused and failed",
                "Requests refused after waiting, failed attempts, answers that broke off or continued at another worker, per second.",
                "cps",
                (
                    f'sum by (outcome) (rate({R}queue_outcomes_total{{outcome=~"timed_out|evicted|rejected|no_worker"}}[]))',
                    "{{outcome}}",
                ),
                (f"sum by (failure) (rate({R}failed_attempts_total{{}}[]))", "attempt: {{failure}}"),
                (f"sum(rate({R}broken_responses_total{{}}[]))", "broken off"),
                (f"sum by (result) (rate({R}failovers_total{{}}[]))", "failover: {{result}}"),
            ),
        ],
    ),
    (
        "Trust in the view",
        [
            lines(
                "Predictions",
                "Share of predictions by outcome. `less`: the worker did not reuse its own state. `unfetched`: it did not fetch state from another worker.",
                "percentunit",
                (
                    f"sum by (outcome) (rate({R}predictions_total{{}}[])) / on () group_left () sum(rate({R}predictions_total{{}}[]))",
                    "{{outcome}}",
                ),
            ),
            lines(
                "Age of summaries",
                "Time since the last summary frame of each worker, the longest of all routers.",
                "s",
                (f"max by (worker) ({R}summary_age_seconds{{}})", "{{worker}}"),
            ),
            lines(
                "Workers",
                "Workers by state, the most of all routers.",
                "short",
                (f"max by (state) ({R}workers{{}})", "{{state}}"),
            ),
        ],
    ),
    (
        "Models on demand",
        [
            lines(
                "Loads and unloads",
                "Loads by outcome and models that leave by cause, per second, of all hosts.",
                "cps",
                (f"sum by (outcome) (rate({H}loads_total{{}}[]))", "{{outcome}}"),
                (f"sum by (cause) (rate({H}unloads_total{{}}[]))", "leaves: {{cause}}"),
            ),
            lines(
                "Time in loads",
                "Share of its time in which each host loads a model. Above a quarter, see the runbook of thrashing.",
                "percentunit",
                (f"sum by (instance) (rate({H}load_seconds_sum{{}}[]))", "{{instance}}"),
            ),
            lines(
                "Waits for models",
                "From the first demand for a model until it is loaded.",
                "s",
                *quantiles(H + "swap_wait_seconds"),
            ),
            lines(
                "Time of a load",
                "Mean time of a load, and what hosts expected.",
                "s",
                average(H + "load_seconds_sum", H + "load_seconds_count", "actual"),
                average(H + "predicted_load_seconds_total", H + "load_seconds_count", "predicted"),
            ),
            lines(
                "Memory of models",
                "Memory of all models with a worker, as projected on all devices and as their processes took of the machine, and the hosts' budget of it.",
                "bytes",
                (f"sum({H}memory_projected_bytes{{}})", "projected"),
                (f"sum({H}memory_measured_bytes{{}})", "actual"),
                (f'sum({H}memory_budget_bytes{{device="ram"}})', "budget"),
            ),
            lines(
                "KV state over swaps",
                "Tokens whose KV state models find on disk when they are loaded, and prompt tokens that they reuse from disk, per second.",
                "short",
                (f"sum(rate({H}kv_kept_tokens_total{{}}[]))", "found"),
                (f"sum(rate({H}kv_reused_tokens_total{{}}[]))", "reused"),
            ),
        ],
    ),
)
