//! Every limit, interval and size of the router that no flag sets.

use std::time::Duration;

/// Most workers that one router follows. Source: own choice; a worker costs one connection and one task, and the index
/// has 24 bits for its number.
pub const WORKERS_MAX: usize = 10_000;

/// Most hosts that one router follows. Source: own choice; a host costs one connection and one task.
pub const HOSTS_MAX: usize = 1_000;

/// Longest time until a host has begun to respond, and until its first summary is whole. Source: own choice: a summary
/// has some hundred bytes for each model.
pub const HOST_FIRST_SUMMARY_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time from one whole event or comment of a host to the next. Source: own choice: a host sends a comment every
/// 15 s; one may be late. A host that is down is noticed by its connection.
pub const HOST_SILENCE_MAX: Duration = Duration::from_secs(40);

/// Longest time for a host's response to an order. Source: own choice: a host answers before it loads.
pub const HOST_CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest response of a host to an order. Units: bytes. Source: the longest summary.
pub const HOST_ANSWER_BYTES_MAX: usize = 1 << 20;

/// Time after a refusal by a worker in which its host may report that the worker leaves. Source: own choice: both
/// reports take some milliseconds; a busy machine delays them.
pub const SWAP_NOTICE_MAX: Duration = Duration::from_secs(2);

/// Time after which a client that waits for a stream gets its head and a comment if a host loads its model. Source: own
/// choice: a load takes seconds, and most loads that fail do so at once.
pub const LOADING_COMMENT_AFTER: Duration = Duration::from_secs(1);

/// Most worker reports queued for the tracker. When the queue is full, a subscriber waits, and so does its worker.
/// Source: own choice: it evens out bursts of many workers, and bounds the memory.
pub const REPORTS_QUEUED_MAX: usize = 1024;

/// Longest silence of a summary stream before it counts as lost. Source: a worker of an earlier release sends at least
/// every second; three messages may be late.
pub const SUMMARY_IDLE_MAX: Duration = Duration::from_millis(3500);

/// Longest silence of the summary stream of a worker that announces its heartbeats, while other workers still send.
/// Units: heartbeats. Source: own choice: three messages may be late, as above.
pub const SILENT_HEARTBEATS_MAX: u32 = 4;

/// Shortest silence that counts as a loss, however often a worker sends. Source: own choice: a busy machine may delay a
/// process by some hundred milliseconds.
pub const SUMMARY_IDLE_MIN: Duration = Duration::from_secs(1);

/// Longest time from a snapshot's first frame to its last. Source: own choice: the largest snapshot has 17 MB.
pub const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30);

/// Most blocks that one worker may announce: 67 million tokens at the default block size. Source: own choice, far above
/// what a worker's memory and disk hold.
pub const WORKER_BLOCKS_MAX: usize = 1 << 21;

/// Most frames per second of one summary stream; more is a flood. Source: a worker pushes its load at most 100 times a
/// second, and blocks at most once per step of a millisecond or more.
pub const SUMMARY_FRAMES_PER_S_MAX: u32 = 5_000;

/// Most bytes per second of one summary stream's updates; more is a flood. A snapshot is bounded by its blocks. Source:
/// own choice: 4 million block keys, far more than a worker computes or loads in a second.
pub const SUMMARY_BYTES_PER_S_MAX: usize = 32 << 20;

/// Shortest pause before a lost summary stream is opened again. Source: own choice: a worker that only closed the
/// stream is back at once.
pub const RECONNECT_MIN: Duration = Duration::from_millis(50);

/// Longest pause before a lost summary stream is opened again. Source: a worker that returns must be in use again
/// within seconds.
pub const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// Time that a stream must last for the next pause to be the shortest again. Source: own choice: longer than the
/// longest pause, so that a stream that always breaks early is not opened all the time.
pub const STEADY_AFTER: Duration = Duration::from_secs(5);

/// Longest response of a loading worker to a subscriber. Units: bytes. Source: the most names that are accepted, each
/// with some adapters, at a usual length.
pub const LOADING_BYTES_MAX: usize = 1 << 20;

/// Longest vocabulary that is downloaded. Units: bytes. Source: the largest of llama.cpp's vocabularies has 16 MB.
pub const VOCABULARY_BYTES_MAX: usize = 256 << 20;

/// Longest time for the download of a vocabulary. Source: own choice: the largest vocabulary that is accepted then
/// needs 4 MB/s.
pub const VOCABULARY_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time for trying a vocabulary in its own process. Source: own choice: a large one takes a second on a quiet
/// machine; the router's machine is busy.
pub const VOCABULARY_TRIAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Most memory of the process that tries a vocabulary, on Linux. Units: bytes of address space. Source: own choice: the
/// allocator reserves 1 GiB at once, and the largest of llama.cpp's vocabularies takes a fifth of the rest.
pub const TRIAL_MEMORY_BYTES_MAX: u64 = 2 << 30;

/// Most processor time of the process that tries a vocabulary. Source: own choice: twenty times the need of the largest
/// of llama.cpp's vocabularies.
pub const TRIAL_PROCESSOR_TIME_MAX: Duration = Duration::from_secs(20);

/// Most vocabularies kept at a time; the models beyond this limit are routed by load. Source: own choice: more models
/// than one router usually serves.
pub const VOCABULARIES_MAX: usize = 32;

/// First pause before a failed vocabulary download is tried again; it doubles. Source: own choice: a worker that is
/// busy answers soon.
pub const VOCABULARY_RETRY_MIN: Duration = Duration::from_millis(500);

/// Longest pause before a failed vocabulary download is tried again. Source: own choice: until then requests for the
/// model are routed by load.
pub const VOCABULARY_RETRY_MAX: Duration = Duration::from_secs(30);

/// Longest non-streaming response that is buffered whole, so that the request can be retried. Units: bytes. Source: own
/// choice: the text of more than a million tokens, or of fewer with their log probabilities.
pub const WHOLE_ANSWER_BYTES_MAX: usize = 8 << 20;

/// Longest partial event that is buffered until its end arrives, and most events that are buffered until the first part
/// of the response arrives. A longer event is passed on in parts, and further events at once. Units: bytes.
/// Source: the longest events repeat a request's tools and instructions, or a whole response: some hundred KiB.
pub const EVENT_HELD_BYTES_MAX: usize = 1 << 20;

/// Most memory of one stream's journal; a stream with a longer one is not continued elsewhere. Units: bytes. Source: a
/// token that is an event of its own takes some 10 bytes, so this is enough for 200,000 of them.
pub const JOURNAL_BYTES_MAX: usize = 2 << 20;

/// Longest silence of a stream, from its request on; then the client gets a comment. Source: own choice: proxies end
/// connections that are silent for 30 to 60 s, and one agent gives up after two silent minutes. Until the first comment
/// the client can get headers and a status other than 200, so it is not shorter.
pub const COMMENT_INTERVAL: Duration = Duration::from_secs(5);

/// Longest time for the body of a worker's refusal after its status; then the request continues without the body.
///
/// Source: an error object arrives with its head. A server that takes longer is in trouble, and the request can go
/// elsewhere.
pub const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Most prompts waiting to be tokenized; further prompts are routed by load. Source: own choice: it bounds the memory;
/// requests that wait longer gain little from a better worker.
pub const PROMPTS_WAITING_MAX: usize = 256;

/// Interval at which the request at the head of the queue checks again whether a worker has capacity. Source: a worker
/// pushes its load at most every 10 ms.
pub const QUEUE_POLL: Duration = Duration::from_millis(10);

/// Longest interval at which a request checks again while the pauses of all workers of its model last. Source: own
/// choice: a server that restarts takes requests again sooner than it announced.
pub const QUEUE_REST: Duration = Duration::from_millis(250);

/// Interval between two polls of a stock server. Source: own choice: a lost server is noticed within about a second,
/// like the end of a summary stream.
pub const STOCK_POLL: Duration = Duration::from_secs(1);

/// Consecutive unanswered polls after which a stock server's open requests count as lost. Source: own choice: one
/// unanswered poll may mean a busy server; two mean six seconds of silence.
pub const STOCK_SILENT_POLLS: u32 = 2;

/// Silence of a response after which the loss of its worker ends it. A response that still arrives shows that its
/// worker is alive.
///
/// Source: own choice: a worker is lost after [`SUMMARY_IDLE_MIN`] or more, and a response that hangs was silent for as
/// long. Between two tokens of a large model on a slow machine pass some hundred milliseconds.
pub const LOST_SILENCE: Duration = Duration::from_millis(500);

/// Longest time after the start in which requests wait until all workers of the first discovery have been contacted.
///
/// Source: own choice: longer than a worker may be silent ([`SUMMARY_IDLE_MAX`]) or a stock server takes to answer
/// ([`STOCK_ANSWER_TIMEOUT`]), and shorter than clients wait.
pub const FIRST_CONTACT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time after the start in which requests wait until the workers' vocabularies are loaded.
///
/// Source: own choice: twice the time that the largest one takes on a busy machine, and shorter than clients wait.
pub const FIRST_VOCABULARIES_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which a worker that discovery no longer finds keeps its `WorkerIdx` and state, without requests. Source:
/// own choice: longer than a DNS interval or an endpoint's flap, and shorter than an operator waits.
pub const LINGER: Duration = Duration::from_secs(30);

/// Time for which the `WorkerIdx` of a removed worker stays unused. Source: own choice: a fleet view is read for
/// milliseconds, and reports about a worker wait for less than a second.
pub const VACANCY: Duration = Duration::from_secs(60);

/// Interval at which the members are compared with the discovered workers. Source: own choice: a change of discovery is
/// handled at once; the interval only delays the removal of workers that have left.
pub const MEMBERSHIP_PAUSE: Duration = Duration::from_secs(1);

/// Longest file of workers. Units: bytes. Source: own choice: [`WORKERS_MAX`] entries of 400 bytes.
pub const WORKERS_FILE_BYTES_MAX: usize = 4 << 20;

/// Time for which an idle connection to a worker is kept. Source: shorter than a worker's own limit (`HEAD_TIMEOUT`),
/// so that the router closes it first.
pub const CONNECTION_IDLE_MAX: Duration = Duration::from_secs(90);

/// Time for the last events of responses that the drain timeout cuts off.
///
/// Source: own choice: an event takes milliseconds; together with [`TRACE_FLUSH_TIMEOUT`] it is below the 5 s that
/// units and charts add to the drain timeout.
pub const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which an idle connection to a stock server is kept. Source: llama-server (cpp-httplib) and vLLM (uvicorn)
/// close an idle connection after 5 s.
pub const STOCK_CONNECTION_IDLE_MAX: Duration = Duration::from_secs(4);

/// Longest time from the start of a call to the break of an old connection that its server was closing just then.
///
/// Source: own choice: such a break comes within a round trip of the request, at most some hundred milliseconds.
/// Balancers that cut silent connections wait for many seconds.
pub const RESEND_WITHIN: Duration = Duration::from_secs(1);

/// Time after which a connection is given up if its peer acknowledges nothing. For a stock server it applies only while
/// the data fits the connection's window.
///
/// Source: own choice: longer than `SUMMARY_IDLE_MAX`, which detects a lost worker sooner and reports it.
pub const WORKER_PATIENCE: Duration = Duration::from_secs(6);

/// Time for which a router that ends waits for its last spans to be sent. Source: own choice: well below the 5 s that
/// units and charts add to the drain timeout.
pub const TRACE_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of recent decisions kept for the fleet page: some 50 KB. Source: own choice: about as many as a person reads.
pub const DECISIONS_KEPT: usize = 100;

/// Interval between two samples of the router's counters. Source: own choice: the page shows a change within seconds,
/// and an hour is a few hundred samples.
pub const HISTORY_PAUSE: Duration = Duration::from_secs(10);

/// Number of these samples kept: one hour, some 80 KB. Source: own choice: longer histories belong to Prometheus.
pub const HISTORY_NOTES: usize = 361;

/// Longest file of API keys. Units: bytes. Source: own choice: some ten thousand keys.
pub const KEYS_FILE_BYTES_MAX: usize = 4 << 20;

/// Time after a request's first failure, without its waits, within which another attempt may begin. A request whose
/// worker was lost is always tried again.
///
/// Source: own choice: half of `--queue-timeout`; three attempts that fail in this time show that a fourth is no help.
pub const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between two resolutions of a name of `--worker-dns`. Source: the lifetime that CoreDNS gives the
/// addresses of a Kubernetes service by default.
pub const DNS_INTERVAL: Duration = Duration::from_secs(5);

/// Longest time for a DNS query. Source: own choice: resolvers try several servers, each for some seconds.
pub const DNS_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time for a stock server's response to a poll. Source: own choice: llama-server answers `/health` while it
/// computes.
pub const STOCK_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest response to a poll. Units: bytes. Source: own choice, far above the longest metrics of such a server.
pub const STOCK_ANSWER_BYTES_MAX: usize = 4 << 20;

/// Most models of one stock server; the models it lists beyond them are left out. Source: own choice: some ten times as
/// many as a llama-server with a folder of models lists.
pub const STOCK_MODELS_MAX: usize = 1024;

/// Assumed number of parallel requests of a stock server that does not report it. Source: own choice: between
/// llama-server's four and the hundreds of servers on GPUs.
pub const STOCK_SLOTS_DEFAULT: u16 = 8;

/// Assumed context size of each parallel request of a stock server that does not report it. Units: tokens. Source: own
/// choice: a small one, so that reuse is not overestimated.
pub const STOCK_CONTEXT_DEFAULT: u32 = 8192;
