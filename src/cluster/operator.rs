//! The launcher's own link to the coordinator: submits the run and asks what is new.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use everstep_transport::identity::{Credentials, Role};
use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::{Message, RunSpec, Step};
use everstep_transport::quic::{Endpoint, Expected, Link, Settings};

use super::error::ClusterError;

/// An operator of the cluster.
pub struct Operator {
    endpoint: Endpoint,
    link: Link,
}

/// How long the coordinator may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

impl Operator {
    /// Connects with the operator's credentials that the coordinator keeps in `home`.
    pub async fn connect(home: &Path, address: SocketAddr) -> Result<Self, ClusterError> {
        let credentials = Credentials::load(&home.join("operator")).map_err(failed)?;
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let settings = Settings::for_address(address.ip());
        let endpoint = Endpoint::bind(listen, &credentials, settings, None).map_err(failed)?;
        let expected = Expected::Role(Role::Coordinator);
        let link = endpoint.connect(address, &expected).await.map_err(failed)?;
        Ok(Self { endpoint, link })
    }

    /// Submits a run.
    pub async fn submit(&self, run: RunSpec) -> Result<(), ClusterError> {
        self.link.send(Message::Submit(run)).map_err(failed)
    }

    /// What is new since this step's line and this event.
    pub async fn watch(&self, step: Step, event: u64) -> Result<Update, ClusterError> {
        self.link.send(Message::Watch { step, event }).map_err(failed)?;
        let answer = tokio::time::timeout(PATIENCE, self.link.receive()).await;
        match answer.map_err(|_| ClusterError::Coordinator("it does not answer".into()))? {
            Ok(Message::Update(update)) => Ok(update),
            Ok(Message::Refused { reason }) => Err(ClusterError::failed(None, &reason)),
            Ok(other) => {
                Err(ClusterError::Coordinator(format!("it answers with {}", other.name())))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Ends the link.
    pub async fn close(&self) {
        self.link.finish().await;
        self.endpoint.close("the run is over").await;
    }
}

fn failed(error: impl std::fmt::Display) -> ClusterError {
    ClusterError::Coordinator(error.to_string())
}
