"""The dashboard of the routers: how they decide, wait, retry and follow their workers."""

from panels import R, lines, page, quantiles, signed

ROUTER = page(
    "warmpath-router",
    "Warmpath: routers",
    "How routers decide, wait, retry and follow their workers.",
    (
        "Requests",
        [
            lines(
                "In flight", "Requests that each router is answering.", "short", (f"{R}requests_in_flight{{}}", "{{instance}}")
            ),
            lines("Whole request", "From arrival to the end of the answer.", "s", *quantiles(R + "request_seconds")),
            lines(
                "Decision",
                "95th percentile of each phase of a decision.",
                "s",
                (
                    f"histogram_quantile(0.95, sum by (le, phase) (rate({R}decision_seconds_bucket{{}}[])))",
                    "{{phase}}",
                ),
            ),
            lines(
                "Time in the queue",
                "Waiting time of requests that had to wait in a router.",
                "s",
                *quantiles(R + "queue_seconds"),
            ),
            lines(
                "Queue outcomes",
                "Outcomes of requests that had to wait, per second.",
                "cps",
                (f"sum by (outcome) (rate({R}queue_outcomes_total{{}}[]))", "{{outcome}}"),
            ),
            lines(
                "Retries",
                "Attempts at another worker, those that the budget did not allow, and clients that left, per second.",
                "cps",
                (f"sum(rate({R}retries_total{{}}[]))", "retried"),
                (f"sum(rate({R}retry_budget_exhausted_total{{}}[]))", "withheld"),
                (f"sum(rate({R}abandoned_responses_total{{}}[]))", "client left"),
            ),
            lines(
                "Untokenized prompts",
                "Prompts that were routed by load because they could not be tokenized, by cause, per second.",
                "cps",
                (f"sum by (cause) (rate({R}untokenized_prompts_total{{}}[]))", "{{cause}}"),
            ),
            lines(
                "Conversations",
                "Chats by their relation to earlier requests, per second.",
                "cps",
                (f"sum by (continuity) (rate({R}conversations_total{{}}[]))", "{{continuity}}"),
            ),
        ],
    ),
    (
        "The view of the fleet",
        [
            signed(
                lines(
                    "Prediction error",
                    "Reuse minus predicted reuse in blocks: the 1st, 50th and 99th percentile.",
                    "short",
                    *(
                        (f"histogram_quantile({q}, sum by (le) (rate({R}prediction_error_blocks_bucket{{}}[])))", f"p{q * 100:g}")
                        for q in (0.01, 0.5, 0.99)
                    ),
                )
            ),
            lines(
                "Stale blocks",
                "Blocks that workers announced and did not reuse twice.",
                "short",
                (f"{R}stale_blocks{{}}", "{{instance}}"),
            ),
            lines(
                "Resyncs",
                "Summary streams that ended, by reason, per second.",
                "cps",
                (f"sum by (reason) (rate({R}summary_stream_ends_total{{}}[]))", "{{reason}}"),
            ),
            lines(
                "Streams opened",
                "Summary streams by their start, per second.",
                "cps",
                (f"sum by (start) (rate({R}summary_streams_total{{}}[]))", "{{start}}"),
            ),
            lines(
                "Summary frames",
                "Frames that each router receives per second.",
                "cps",
                (f"sum by (instance) (rate({R}summary_frames_total{{}}[]))", "{{instance}}"),
            ),
            lines(
                "Breakers",
                "State of each worker's breaker, the worst of all routers: 0 closed, 1 half open, 2 open.",
                "short",
                (f"max by (worker) ({R}worker_breaker_state{{}})", "{{worker}}"),
            ),
            lines(
                "Excluded workers",
                "Workers that are excluded, by disagreement, and workers that share an identity.",
                "short",
                (f"max by (disagreement) ({R}workers_excluded{{}})", "{{disagreement}}"),
                (f"max({R}workers_sharing_uid{{}})", "sharing an identity"),
            ),
            lines(
                "Blocks by worker",
                "Blocks that each worker is known to hold.",
                "short",
                (f"max by (worker) ({R}worker_blocks{{}})", "{{worker}}"),
            ),
            lines(
                "KV transfers",
                "Requests with a hint to fetch KV state, and prefixes that workers were told to fetch ahead, by cause, per second.",
                "cps",
                (f"sum(rate({R}kv_transfer_hints_total{{}}[]))", "request"),
                (f"sum by (cause) (rate({R}kv_prefetches_total{{}}[]))", "{{cause}}"),
            ),
            lines("Prefix index", "Memory of the index.", "bytes", (f"{R}index_bytes{{}}", "{{instance}}")),
            lines(
                "Blocks in the index",
                "Distinct blocks in each router's index, and entries per second that it evicts at its memory limit.",
                "short",
                (f"{R}index_blocks{{}}", "{{instance}}"),
                (f"rate({R}index_evicted_entries_total{{}}[])", "{{instance}}: evicted"),
            ),
        ],
    ),
    (
        "Keys, certificates and discovery",
        [
            lines(
                "Refused",
                "Requests without a valid API key, per second.",
                "reqps",
                (f"sum by (instance) (rate({R}auth_failures_total{{}}[]))", "{{instance}}"),
            ),
            lines(
                "Files that cannot be used",
                "Failed reads of the file of API keys and of certificates, per second; the last valid ones stay in force.",
                "cps",
                (f"sum by (instance) (rate({R}key_file_failures_total{{}}[]))", "{{instance}}: keys"),
                (f"sum by (instance) (rate({R}tls_failures_total{{}}[]))", "{{instance}}: certificates"),
            ),
            lines(
                "Failed discovery",
                "Failed searches for workers by source, per second; the last result stays in force.",
                "cps",
                (f"sum by (source) (rate({R}discovery_failures_total{{}}[]))", "{{source}}"),
            ),
        ],
    ),
    (
        "Stock servers and vocabularies",
        [
            lines(
                "Predictions at stock servers",
                "By outcome, per second.",
                "cps",
                (f"sum by (outcome) (rate({R}stock_predictions_total{{}}[]))", "{{outcome}}"),
            ),
            lines(
                "Stock servers lost",
                "By reason, per second.",
                "cps",
                (f"sum by (reason) (rate({R}stock_losses_total{{}}[]))", "{{reason}}"),
                (f"sum(rate({R}stock_vocabulary_mismatches_total{{}}[]))", "another vocabulary"),
            ),
            lines(
                "Vocabulary downloads",
                "By outcome, per second.",
                "cps",
                (f"sum by (outcome) (rate({R}vocabulary_downloads_total{{}}[]))", "{{outcome}}"),
            ),
        ],
    ),
)
