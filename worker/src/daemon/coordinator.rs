//! The link to a coordinator: found again whenever it is lost.
//!
//! Training goes on meanwhile. The core is told what is said, when the link is lost, when another
//! is up, and when none could be had for too long. Which coordinator leads is not known here: the
//! first that lets this worker in is taken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Addr, MailboxError};
use everstep_transport::identity::{Credentials, JoinToken, NODE_LIFETIME, Role};
use everstep_transport::quic::{self, ConnectError, Endpoint, Expected, Link};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::actor::WorkerActor;
use super::event::{Connected, Event};
use crate::step::event::Input;

/// How long coordinators are looked for before the worker gives up.
const PATIENCE: Duration = Duration::from_secs(600);
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
    /// What the worker shows, and when it was issued.
    pub credentials: (Credentials, Instant),
}

/// Carries what the coordinator says to the actor, over this link and over those that follow it,
/// until the actor ends or no coordinator is found.
pub async fn attend(mut reach: Reach, mut link: Link, own: Addr<WorkerActor>) {
    loop {
        let Ok(reason) = carry(&link, &own).await else { return };
        if own.send(Event(Input::CoordinatorLost(reason.clone()))).await.is_err() {
            return; // the worker is leaving, and has closed it
        }
        tracing::warn!(reason, "the link to the coordinator is lost");
        match reach.link().await {
            Ok(found) => link = found,
            Err(reason) => return own.do_send(Event(Input::CoordinatorGone(reason))),
        }
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
    /// A link to any coordinator, or why there is none.
    async fn link(&mut self) -> Result<Link, String> {
        let began = Instant::now();
        let (mut pause, mut round) = (PAUSES.0, ROUNDS.0);
        loop {
            // Half of its life is over: a certificate that has expired lets nobody in.
            if self.credentials.1.elapsed() > NODE_LIFETIME / 2 {
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
    async fn renew(&mut self) {
        for address in &self.addresses {
            match quic::renew(*address, &self.token, &self.credentials.0).await {
                Ok(renewed) => match self.endpoint.renew(&renewed) {
                    Ok(()) => {
                        tracing::info!("the worker's certificate is renewed");
                        self.credentials = (renewed, Instant::now());
                        return;
                    }
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

    use everstep_transport::identity::{Authority, Enrolment, Identity};
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
            let enrolment = Enrolment::new(self.authority.clone(), vec![self.token.accepted()]);
            let settings = Settings::for_address(address.ip());
            Endpoint::bind(address, &credentials, settings, Some(enrolment)).unwrap()
        }

        fn reach(&self, addresses: Vec<SocketAddr>, valid: Duration) -> Reach {
            let credentials = self.issue(Role::Worker, valid);
            let anywhere: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
            let settings = Settings::for_address(anywhere.ip());
            let endpoint = Endpoint::bind(anywhere, &credentials, settings, None).unwrap();
            let token = self.token.to_string().parse().unwrap();
            let credentials = (credentials, Instant::now());
            Reach { endpoint: Arc::new(endpoint), addresses, token, credentials }
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
        let mut reach = world.reach(vec![address], NODE_LIFETIME);
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
        let mut reach = world.reach(vec![centre.local_address()], Duration::ZERO);
        let before = reach.credentials.0.chain();
        sleep(Duration::from_millis(1100)).await; // certificates count seconds
        reach.link().await.unwrap();
        assert_ne!(reach.credentials.0.chain()[0], before[0]);
    }
}
