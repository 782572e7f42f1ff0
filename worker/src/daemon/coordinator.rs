//! The link to a coordinator: found again whenever it is lost.
//!
//! Training goes on meanwhile. The core is told what is said, when the link is lost, when another
//! is up, and when none could be had for long: whether that ends the worker is the core's to say,
//! and as long as it does not, the search goes on. Which coordinator leads is not known here: the
//! first that lets this worker in is taken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Addr, MailboxError};
use everstep_transport::identity::{JoinToken, Role, UnixTime};
use everstep_transport::quic::{self, ConnectError, Endpoint, Expected, Link};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::actor::WorkerActor;
use super::event::{Connected, Event};
use crate::step::event::Input;

/// How long coordinators are looked for before the core is told that there are none.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often the log says that none is found.
const WARNING: Duration = Duration::from_secs(60);
/// Between two rounds of calls, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long one round may take, at first and at most: QUIC asks a silent port ever less often, so
/// a fresh call hears sooner of a coordinator that has just come up.
const ROUNDS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

/// What it takes to reach a coordinator.
pub struct Reach {
    /// The process's port.
    pub endpoint: Arc<Endpoint>,
    /// Where coordinators listen.
    pub addresses: Vec<SocketAddr>,
    /// The join token.
    pub token: JoinToken,
}

/// Carries what a coordinator says to the actor, over one link after the other, until the actor
/// ends.
pub async fn attend(reach: Reach, own: Addr<WorkerActor>) {
    while let Some(link) = reach.search(&own).await {
        let Ok(reason) = carry(&link, &own).await else { return };
        if own.send(Event(Input::CoordinatorLost(reason.clone()))).await.is_err() {
            return; // the worker is leaving, and has closed it
        }
        tracing::warn!(reason, "the link to the coordinator is lost");
    }
}

/// Carries one link's messages; returns why it ended. An error means that the actor has ended.
async fn carry(link: &Link, own: &Addr<WorkerActor>) -> Result<String, MailboxError> {
    own.send(Connected(link.clone())).await?;
    loop {
        match link.receive().await {
            Ok(message) => own.send(Event(Input::Coordinator(message))).await?,
            Err(error) => return Ok(error.to_string()),
        }
    }
}

impl Reach {
    /// A link to any coordinator, whenever there is one; none if the worker gives up before.
    async fn search(&self, own: &Addr<WorkerActor>) -> Option<Link> {
        loop {
            let reason = match self.link().await {
                Ok(found) => return Some(found),
                Err(reason) => reason,
            };
            let told = own.send(Event(Input::CoordinatorGone(reason))).await;
            if told.is_err() || !own.connected() {
                return None;
            }
        }
    }

    /// A link to any coordinator, or why there is none for so long.
    async fn link(&self) -> Result<Link, String> {
        let began = Instant::now();
        let mut warned = began;
        let (mut pause, mut round) = (PAUSES.0, ROUNDS.0);
        loop {
            // No link to renew it over: a certificate that has expired lets nobody in.
            if self.endpoint.credentials().are_due(UnixTime::now()) {
                self.renew().await;
            }
            let reason = match timeout(round, self.round()).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(ConnectError::Expired { .. })) => {
                    self.renew().await;
                    "the worker's certificate has expired".into()
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no coordinator answers".to_string(),
            };
            tracing::debug!(reason, "trying again");
            if began.elapsed() > PATIENCE {
                return Err(reason);
            }
            if warned.elapsed() > WARNING {
                warned = Instant::now();
                tracing::warn!(reason, "no coordinator can be reached; still trying");
            }
            sleep(pause).await;
            (pause, round) = ((pause * 2).min(PAUSES.1), (round * 2).min(ROUNDS.1));
        }
    }

    /// Calls all coordinators at once and takes the first that answers.
    async fn round(&self) -> Result<Link, ConnectError> {
        let mut calls = JoinSet::new();
        for address in &self.addresses {
            let (endpoint, address) = (self.endpoint.clone(), *address);
            calls.spawn(async move {
                endpoint.connect(address, &Expected::Role(Role::Coordinator)).await
            });
        }
        let mut last = ConnectError::NoAnswer { address: self.endpoint.local_address() };
        while let Some(called) = calls.join_next().await {
            match called {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(error)) => last = error,
                Err(_) => {} // the runtime is ending
            }
        }
        Err(last)
    }

    /// Enrols again with the same key, and so under the same name.
    async fn renew(&self) {
        for address in &self.addresses {
            match quic::renew(*address, &self.token, &self.endpoint.credentials()).await {
                Ok(renewed) => match self.endpoint.renew(&renewed) {
                    Ok(()) => return tracing::info!("the worker's certificate is renewed"),
                    Err(error) => tracing::warn!(%error, "the new certificate is of no use"),
                },
                Err(error) => tracing::debug!(%address, %error, "no new certificate"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use everstep_transport::identity::{
        Authority, Credentials, Enrolment, Identity, NODE_LIFETIME, Terms,
    };
    use everstep_transport::protocol::NodeName;
    use everstep_transport::quic::Settings;

    use super::*;

    /// A cluster's authority and token.
    struct World {
        authority: Arc<Authority>,
        token: JoinToken,
    }

    impl World {
        fn new() -> Self {
            let authority = Arc::new(Authority::create().unwrap());
            Self { token: JoinToken::create(&authority), authority }
        }

        fn issue(&self, role: Role, valid: Duration) -> Credentials {
            let name = NodeName::parse("some-node").unwrap();
            self.authority.issue(&Identity { role, name }, valid).unwrap()
        }

        fn coordinator(&self, address: SocketAddr) -> Endpoint {
            let credentials = self.issue(Role::Coordinator, NODE_LIFETIME);
            let workers = self.token.accepted(Terms::unlimited(Role::Worker));
            let enrolment = Enrolment::new(self.authority.clone(), vec![workers]);
            let settings = Settings::for_address(address.ip());
            Endpoint::bind(address, &credentials, settings, Some(enrolment)).unwrap()
        }

        fn reach(&self, addresses: Vec<SocketAddr>, valid: Duration) -> Reach {
            let credentials = self.issue(Role::Worker, valid);
            let anywhere: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
            let settings = Settings::for_address(anywhere.ip());
            let endpoint = Endpoint::bind(anywhere, &credentials, settings, None).unwrap();
            let token = self.token.to_string().parse().unwrap();
            Reach { endpoint: Arc::new(endpoint), addresses, token }
        }
    }

    /// An address where nobody listens.
    fn nowhere() -> SocketAddr {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
    }

    #[tokio::test]
    async fn one_coordinator_that_answers_is_enough() {
        let world = World::new();
        let centre = world.coordinator((Ipv4Addr::LOCALHOST, 0).into());
        let addresses = vec![nowhere(), centre.local_address(), nowhere()];
        let link = world.reach(addresses, NODE_LIFETIME).link().await.unwrap();
        assert_eq!(link.remote_address(), centre.local_address());
    }

    #[tokio::test]
    async fn a_coordinator_that_comes_up_late_is_found() {
        let world = World::new();
        let address = nowhere();
        let reach = world.reach(vec![address], NODE_LIFETIME);
        let late = async {
            sleep(Duration::from_millis(700)).await;
            (world.coordinator(address), Instant::now())
        };
        let (link, (_centre, up)) = tokio::join!(reach.link(), late);
        assert_eq!(link.unwrap().remote_address(), address);
        println!("found {:?} after it came up", up.elapsed());
    }

    #[tokio::test]
    async fn a_worker_whose_certificate_has_expired_enrols_again() {
        let world = World::new();
        let centre = world.coordinator((Ipv4Addr::LOCALHOST, 0).into());
        let reach = world.reach(vec![centre.local_address()], Duration::ZERO);
        let before = reach.endpoint.credentials();
        sleep(Duration::from_millis(1100)).await; // certificates count seconds
        reach.link().await.unwrap();
        assert_ne!(reach.endpoint.credentials().chain(), before.chain());
    }
}
