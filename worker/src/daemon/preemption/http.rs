//! One HTTP/1.1 exchange with a metadata service, on a connection of its own and never through a
//! proxy. The caller bounds its time.

use std::error::Error;
use std::io;

use bytes::Bytes;
use everstep_transport::quic::HostPort;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The longest body that is read. The longest documented answers have some thousand bytes.
const MAX_BODY: usize = 64 << 10;
/// The memory for the head of an answer.
const MAX_HEAD: usize = 16 << 10;

/// An exchange without a whole answer.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The service takes no connection.
    #[error("it cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    /// The peer does not speak HTTP, or has closed the connection.
    #[error("the exchange failed: {0}")]
    Http(#[from] hyper::Error),
    /// The body breaks off, or has more than 64 KiB.
    #[error("its answer cannot be read: {0}")]
    Body(#[from] Box<dyn Error + Send + Sync>),
}

/// Sends a request to the place. Returns the status and the body of the answer.
pub async fn exchange(
    place: &HostPort,
    request: Request<Empty<Bytes>>,
) -> Result<(u16, Bytes), ExchangeError> {
    let stream = TcpStream::connect(place.resolve().await?.as_slice()).await?;
    let settings = http1::Builder::new().max_buf_size(MAX_HEAD).clone();
    let (mut sender, connection) = settings.handshake(TokioIo::new(stream)).await?;
    let answer = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await?.to_bytes();
        Ok((head.status.as_u16(), body))
    };
    // The connection ends with the sender. Its errors are those of the answer.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}
