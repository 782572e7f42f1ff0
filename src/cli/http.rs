//! The flags of a coordinator's HTTP API.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use everstep_coordinator::http::HttpOptions;

/// Where the API is, and what it asks of clients.
#[derive(Args, Clone, Debug)]
pub struct HttpFlags {
    /// Where the HTTP API listens (TCP, not encrypted). Port 0 takes a free port [default:
    /// 127.0.0.1:7080, or a free port if that is taken]
    #[arg(long, value_name = "HOST:PORT|none", env = "EVERSTEP_HTTP")]
    http: Option<Listen>,
    /// A file with a token that every HTTP request needs. The API needs one if other machines reach
    /// it. Without one, only changes need a token, which is in DIR/api.token
    #[arg(long, value_name = "FILE", env = "EVERSTEP_HTTP_TOKEN")]
    http_token: Option<PathBuf>,
    /// A file with a token that is enough to read, for dashboards and Prometheus. Changes need the
    /// other token
    #[arg(long, value_name = "FILE", env = "EVERSTEP_HTTP_READ_TOKEN")]
    http_read_token: Option<PathBuf>,
}

impl HttpFlags {
    /// The API that they ask for.
    pub fn options(self) -> Option<HttpOptions> {
        let Self { http, http_token: token, http_read_token: read_token } = self;
        match http {
            Some(Listen(None)) => None,
            listen => {
                let listen = listen.and_then(|Listen(listen)| listen);
                Some(HttpOptions { listen, token, read_token })
            }
        }
    }
}

/// An address, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listen(Option<SocketAddr>);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self(None));
        }
        let address = text.parse().map_err(|_| "it must be an IP address and a port, or none");
        Ok(Self(Some(address?)))
    }
}
