//! A client of the HTTP API that says what a test lets it say.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than any answer takes here, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// The header lines, in small letters.
    pub headers: String,
    pub body: String,
}

impl Response {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Reads what is at a path.
pub async fn look(api: SocketAddr, path: &str) -> Response {
    ask(api, "GET", path, &[], "").await
}

/// Sends a body with this token.
pub async fn send(api: SocketAddr, path: &str, token: &str, body: &str) -> Response {
    let bearer = format!("Bearer {}", token.trim());
    ask(api, "POST", path, &[("authorization", &bearer)], body).await
}

/// One request on a connection of its own.
pub async fn ask(
    api: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Response {
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str(&format!("host: {api}\r\n"));
    }
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let answer = tokio::time::timeout(PATIENCE, exchange(api, text.as_bytes()));
    let answer = answer.await.expect("an answer in time");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (status, headers) = (status.expect("a status"), head.to_ascii_lowercase());
    Response { status, headers, body: body.to_string() }
}

/// What comes back for these bytes, until the connection ends.
async fn exchange(api: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(api).await.expect("connected");
    stream.write_all(bytes).await.expect("sent");
    let mut answer = Vec::new();
    // Whoever refuses a body may close before it has read all of it.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).expect("text")
}
