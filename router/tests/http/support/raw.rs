//! A stock server that responds to every generation with scripted bytes, chunk by chunk, and a scripted end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::AsyncBufReadExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A step of a response.
#[derive(Debug, Clone)]
pub enum Step {
    /// Sends a chunk.
    Send(Vec<u8>),
    /// Sends a chunk again and again, until the client leaves.
    Repeat(Vec<u8>),
    /// Ends the connection within the response.
    Break,
    /// Sends nothing more, and waits until the client disconnects.
    Hang,
}

/// A response; it ends in order after its last step.
#[derive(Debug, Clone)]
pub struct Script {
    /// Lines of its head: the status, and headers besides those of framing.
    pub head: String,
    pub steps: Vec<Step>,
}

struct Shared {
    script: Mutex<Script>,
    /// Heads of the requests for a response.
    asked: Mutex<Vec<String>>,
    n_left: AtomicUsize,
}

/// A server with a script.
pub struct RawServer {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

/// Returns a response whose events are these texts, one per chunk.
pub fn events(steps: &[&str]) -> Script {
    let steps = steps.iter().map(|text| Step::Send(text.as_bytes().to_vec())).collect();
    Script { head: "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n".to_owned(), steps }
}

impl Script {
    /// Returns the same response with one more step.
    pub fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Returns the same response with one more header.
    pub fn with(mut self, header: &str) -> Self {
        self.head.push_str(header);
        self.head.push_str("\r\n");
        self
    }
}

impl RawServer {
    /// Starts a server with this response.
    pub async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
        let address = listener.local_addr().expect("it is bound");
        let shared =
            Arc::new(Shared { script: Mutex::new(script), asked: Mutex::default(), n_left: AtomicUsize::new(0) });
        let mut tasks = JoinSet::new();
        let served = Arc::clone(&shared);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&served)));
            }
        });
        Self { address, shared, _tasks: tasks }
    }

    /// Returns its address on the command line.
    pub fn flag(&self) -> String {
        format!("openai+http://{}", self.address)
    }

    pub fn answer_with(&self, script: Script) {
        *self.shared.script.lock().expect("no test panics here") = script;
    }

    /// Returns the heads of the requests for a response.
    pub fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().expect("no test panics here").clone()
    }

    /// Returns how many clients left an incomplete response.
    pub fn n_left(&self) -> usize {
        self.shared.n_left.load(Ordering::SeqCst)
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // A client may break the connection.
    let _ = exchange(BufReader::new(stream), &shared).await;
}

async fn exchange(mut stream: BufReader<TcpStream>, shared: &Shared) -> std::io::Result<()> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let mut stream = stream.into_inner();
    if head.starts_with("get ") {
        return stream.write_all(about(&head).as_bytes()).await;
    }
    shared.asked.lock().expect("no test panics here").push(head);
    let Script { head, steps } = shared.script.lock().expect("no test panics here").clone();
    let framing = "transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{head}{framing}").as_bytes()).await?;
    for step in steps {
        let over = follow(&mut stream, step).await;
        if over.is_err() {
            shared.n_left.fetch_add(1, Ordering::SeqCst);
        }
        if !matches!(over, Ok(true)) {
            return Ok(());
        }
    }
    stream.write_all(b"0\r\n\r\n").await
}

/// Executes a step; returns whether the response continues. Errors: the client has disconnected.
async fn follow(stream: &mut TcpStream, step: Step) -> std::io::Result<bool> {
    match step {
        Step::Send(bytes) => stream.write_all(&chunk(&bytes)).await.map(|()| true),
        Step::Break => Ok(false),
        Step::Hang => match stream.read(&mut [0]).await? {
            0 => Err(std::io::ErrorKind::ConnectionAborted.into()),
            _ => Ok(false),
        },
        Step::Repeat(bytes) => {
            let chunk = chunk(&bytes);
            loop {
                stream.write_all(&chunk).await?;
                tokio::task::yield_now().await;
            }
        }
    }
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() { Vec::new() } else { [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat() }
}

/// Returns the server's declaration.
fn about(head: &str) -> String {
    let (status, body) = match head.split(' ').nth(1) {
        Some("/v1/models") => ("200 OK", r#"{"object": "list", "data": [{"id": "raw"}]}"#),
        Some("/health") => ("200 OK", "{}"),
        _ => ("404 Not Found", "{}"),
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}
