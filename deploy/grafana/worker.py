"""The dashboard of the workers: what they compute, hold, restore and evict."""

from panels import W, average, lines, page, percentile_by, quantiles

WORKER = page(
    "warmpath-worker",
    "Warmpath: workers",
    "What workers compute, hold, restore and evict.",
    (
        "Work",
        [
            lines(
                "Prompt tokens",
                "Prompt tokens that are computed and reused, per second.",
                "short",
                (f"sum(rate({W}prefill_tokens_total{{}}[]))", "computed"),
                (f"sum(rate({W}prefix_cache_tokens_total{{}}[]))", "reused"),
            ),
            lines(
                "Answer tokens",
                "Answer tokens that each worker computes per second.",
                "short",
                (f"sum by (instance) (rate({W}decode_tokens_total{{}}[]))", "{{instance}}"),
            ),
            lines(
                "Drafted tokens",
                "Drafted tokens that are accepted and rejected, per second; none without --spec-type.",
                "short",
                (f"sum by (outcome) (rate({W}draft_tokens_total{{}}[]))", "{{outcome}}"),
            ),
            lines(
                "Sequences",
                "Ended sequences by outcome, per second.",
                "cps",
                (f"sum(rate({W}sequences_finished_total{{}}[]))", "answered"),
                (f"sum(rate({W}sequences_cancelled_total{{}}[]))", "client left"),
                (f"sum(rate({W}sequences_failed_total{{}}[]))", "failed"),
            ),
            lines(
                "Steps",
                "Batches that llama.cpp computes, and those that fail, per second.",
                "ops",
                (f"sum by (instance) (rate({W}steps_total{{}}[]))", "{{instance}}"),
                (f"sum by (instance) (rate({W}decode_failures_total{{}}[]))", "{{instance}}: failed"),
            ),
            lines(
                "Time to first token by reuse, median",
                "By the reused share of the prompt: none, some, half or more, most (nine tenths).",
                "s",
                percentile_by(0.5, W + "ttft_seconds", "cached"),
            ),
            lines(
                "Time per output token by reuse, median",
                "The same, after the first token.",
                "s",
                percentile_by(0.5, W + "tpot_seconds", "cached"),
            ),
            lines(
                "Prefill rate",
                "Prompt tokens that each worker computes per second, by its own measurement.",
                "short",
                (f"{W}prefill_rate_tokens_per_second{{}}", "{{instance}}"),
            ),
            lines(
                "Seconds saved",
                "Seconds of prefill that reuse saves per second, by worker.",
                "s",
                (f"sum by (instance) (rate({W}saved_prefill_seconds_total{{}}[]))", "{{instance}}"),
            ),
            lines(
                "Waits for a processor",
                "Threads of each worker that are ready to run and wait because other programs have the processors.",
                "short",
                (f"sum by (instance) (rate({W}processor_wait_seconds_total{{}}[]))", "{{instance}}"),
                (f"{W}compute_threads{{}}", "{{instance}}: threads that compute"),
            ),
            lines("Queue", "Sequences that wait for a slot.", "short", (f"{W}queue_sequences{{}}", "{{instance}}")),
            lines(
                "Requests",
                "Requests of all workers by status.",
                "reqps",
                (f"sum by (status) (rate({W}requests_total{{}}[]))", "{{status}}"),
            ),
            lines("Whole request", "From arrival to the end of the answer.", "s", *quantiles(W + "request_seconds")),
            lines("Rendering and tokenizing", "Time that a prompt takes before it is queued.", "s", *quantiles(W + "prompt_seconds")),
            lines("Loading the model", "Time that loading took.", "s", (f"{W}model_load_seconds{{}}", "{{instance}}")),
        ],
    ),
    (
        "The cache",
        [
            lines(
                "Share of a prompt that is reused",
                "Reused share of each sequence's prompt: the 10th, 50th and 90th percentile.",
                "percentunit",
                *(
                    (f"histogram_quantile({q}, sum by (le) (rate({W}prefix_cache_ratio_bucket{{}}[])))", f"p{q * 100:g}")
                    for q in (0.1, 0.5, 0.9)
                ),
            ),
            lines(
                "Reused tokens by tier",
                "Prompt tokens by the tier from which they were reused, per second.",
                "short",
                (f"sum by (tier) (rate({W}prefix_cache_tokens_total{{}}[]))", "{{tier}}"),
            ),
            lines(
                "Tokens held",
                "Tokens whose state is held, by tier.",
                "short",
                (f"sum by (tier) ({W}cache_tokens{{}})", "{{tier}}"),
            ),
            lines("Bytes held", "Bytes of held state, by tier.", "bytes", (f"sum by (tier) ({W}cache_bytes{{}})", "{{tier}}")),
            lines(
                "Evictions",
                "Chunks and checkpoints that leave a tier, per second.",
                "cps",
                (f"sum by (tier, reason) (rate({W}cache_evictions_total{{}}[]))", "{{tier}}: {{reason}}"),
            ),
            lines(
                "Restores and saves",
                "Starts for which state was moved into the slot, exports into the store, moves out of the KV buffer, per second.",
                "ops",
                (f"sum(rate({W}restores_total{{}}[]))", "restored"),
                (f"sum(rate({W}saves_total{{}}[]))", "saved"),
                (f"sum(rate({W}slots_offloaded_total{{}}[]))", "moved out"),
            ),
            lines(
                "Time of a restore and of a save",
                "Averages.",
                "s",
                average(W + "restore_seconds_total", W + "restores_total", "restore"),
                average(W + "save_seconds_total", W + "saves_total", "save"),
            ),
            lines(
                "Time that restores take",
                "Share of the time in which state was moved into slots.",
                "percentunit",
                (f"sum by (instance) (rate({W}restore_seconds_total{{}}[]))", "{{instance}}"),
            ),
            lines(
                "Disk failures",
                "Failed writes and reads of stored state, per second. See the runbook of the disk tier.",
                "cps",
                (f"sum by (instance, operation) (rate({W}disk_failures_total{{}}[]))", "{{instance}}: {{operation}}"),
            ),
            lines(
                "Waits for a prefix",
                "Sequences that waited for a prefix that another was computing, and those whose stored state could not be used, per second.",
                "ops",
                (f"sum(rate({W}prefix_waits_total{{}}[]))", "waited"),
                (f"sum(rate({W}restore_failures_total{{}}[]))", "not usable"),
            ),
            lines(
                "Time of such waits",
                "Waiting time of all sequences per second, for a prefix that another computed and for the disk.",
                "percentunit",
                (f"sum(rate({W}prefix_wait_seconds_total{{}}[]))", "for a prefix"),
                (f"sum(rate({W}disk_wait_seconds_total{{}}[]))", "for the disk"),
            ),
            lines(
                "Checkpoints and shifts",
                "Checkpoints of models that cannot be rewound, and shifts of full contexts, per second.",
                "ops",
                (f"sum(rate({W}checkpoints_made_total{{}}[]))", "checkpoints made"),
                (f"sum(rate({W}checkpoint_uses_total{{}}[]))", "checkpoints used"),
                (f"sum(rate({W}context_shifts_total{{}}[]))", "contexts shifted"),
            ),
            lines(
                "Entries",
                "Slots that hold state, stored chunks and checkpoints, by tier.",
                "short",
                (f"sum by (tier) ({W}cache_entries{{}})", "{{tier}}"),
            ),
            lines(
                "Tokens stored",
                "Tokens whose state is stored, per second.",
                "short",
                (f"sum by (instance) (rate({W}saved_tokens_total{{}}[]))", "{{instance}}"),
            ),
            lines(
                "Transfers",
                "Transfers of KV state between workers, by direction and result, per second.",
                "ops",
                (f"sum by (direction, result) (rate({W}kv_transfers_total{{}}[]))", "{{direction}}: {{result}}"),
            ),
            lines(
                "Bytes of transfers",
                "Bytes of KV state that each worker sends and receives per second.",
                "Bps",
                (f"sum by (instance, direction) (rate({W}kv_transfer_bytes_total{{}}[]))", "{{instance}}: {{direction}}"),
            ),
            lines(
                "KV buffer", "Tokens whose state is in the KV buffer.", "short", (f"{W}kv_cache_tokens{{}}", "{{instance}}")
            ),
        ],
    ),
    (
        "Summaries",
        [
            lines(
                "Updates",
                "Updates of the summary, per second.",
                "ops",
                (f"sum by (instance) (rate({W}summary_updates_total{{}}[]))", "{{instance}}"),
            ),
            lines(
                "Frames",
                "Frames that were sent to routers, per second.",
                "ops",
                (f"sum by (instance) (rate({W}summary_frames_total{{}}[]))", "{{instance}}"),
            ),
            lines(
                "Subscribers",
                "Routers that follow each worker; those that were disconnected because they did not keep up, per second.",
                "short",
                (f"{W}summary_subscribers{{}}", "{{instance}}"),
                (f"sum by (instance) (rate({W}summary_cut_off_total{{}}[]))", "{{instance}}: cut off"),
            ),
        ],
    ),
)
