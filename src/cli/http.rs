//! The flags of a coordinator's HTTP API.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use everstep_coordinator::http::Options;

/// Where the API is, and what it asks of clients.
#[derive(Args, Clone, Debug)]
pub struct HttpFlags {
    /// Where the HTTP API listens (TCP; it is not encrypted); port 0 takes a free one
    #[arg(
        long,
        value_name = "HOST:PORT|none",
        env = "EVERSTEP_HTTP",
        default_value = "127.0.0.1:0"
    )]
    http: Listen,
    /// A file with a token that the HTTP API asks for everything; needed where other machines reach
    /// it. Without one, only changes need a token: that in DIR/api.token
    #[arg(long, value_name = "FILE", env = "EVERSTEP_HTTP_TOKEN")]
    http_token: Option<PathBuf>,
}

impl HttpFlags {
    /// The API that they ask for.
    pub fn options(self) -> Option<Options> {
        let Self { http: Listen(listen), http_token: token } = self;
        listen.map(|listen| Options { listen, token })
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
