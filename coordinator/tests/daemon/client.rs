//! A client of the HTTP API that sends exactly the bytes of a test.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than any answer takes here, however busy the machine is.
const HTTP_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// A coordinator drops a connection if the first byte of a request comes later than this.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(1);

/// The answer to a request.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// The header lines, in small letters.
    pub headers: String,
    pub body: String,
}

impl Response {
    /// None if the text is no answer.
    fn parse(answer: &str) -> Option<Self> {
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let headers = head.to_ascii_lowercase();
        Some(Self { status, headers, body: body.to_string() })
    }

    /// Whether the whole body is there.
    fn is_whole(&self) -> bool {
        let length = self.headers.lines().find_map(|line| line.strip_prefix("content-length: "));
        length.is_none_or(|length| length.parse() == Ok(self.body.len()))
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A request before it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a str,
}

impl Request<'_> {
    fn text(&self, api: SocketAddr) -> String {
        let Self { method, path, headers, body } = self;
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {api}\r\n"));
        }
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        format!("{head}content-length: {}\r\n\r\n{body}", body.len())
    }
}

/// Reads a path of a coordinator that another task may kill meanwhile.
pub async fn try_look(api: SocketAddr, path: &str) -> Option<Response> {
    try_ask(api, Request { method: "GET", path, headers: &[], body: "" }).await
}

/// Sends a request to a coordinator that another task may kill meanwhile.
pub async fn try_ask(api: SocketAddr, request: Request<'_>) -> Option<Response> {
    let mut stream = TcpStream::connect(api).await.ok()?;
    stream.write_all(request.text(api).as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Response::parse(&answer).filter(Response::is_whole)
}

/// Reads a path.
pub async fn look(api: SocketAddr, path: &str) -> Response {
    ask(api, "GET", path, &[], "").await
}

/// Sends a body with this token.
pub async fn send(api: SocketAddr, path: &str, token: &str, body: &str) -> Response {
    let bearer = format!("Bearer {}", token.trim());
    ask(api, "POST", path, &[("authorization", &bearer)], body).await
}

/// Sends one request on a connection of its own. Sends it again if it may have come so late that
/// the coordinator has dropped the connection unread.
pub async fn ask(
    api: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Response {
    let text = Request { method, path, headers, body }.text(api);
    let answered = async {
        loop {
            let begins = Instant::now();
            let answer = exchange(api, text.as_bytes()).await;
            if !answer.is_empty() || begins.elapsed() < FIRST_BYTE_TIMEOUT {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(HTTP_ANSWER_TIMEOUT, answered);
    let answer = answer.await.expect("an answer in time");
    Response::parse(&answer).expect("a head and a body")
}

/// Sends these bytes, and returns all bytes that come back until the connection ends.
async fn exchange(api: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(api).await.expect("connected");
    stream.write_all(bytes).await.expect("sent");
    let mut answer = Vec::new();
    // A server that refuses a body may close before it has read all of it.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).expect("text")
}
