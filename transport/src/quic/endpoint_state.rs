//! What all links of an endpoint share, on either side.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex as Lock};
use std::time::Instant;

use quinn::{Connection, RecvStream, SendStream};
use rustls::time_provider::TimeProvider;
use tokio::sync::Mutex;

use super::allow_list::AllowList;
use super::error::HandshakeError;
use super::link::Link;
use super::links::Links;
use super::presented::PresentedCredentials;
use super::probe::{self, Probes};
use super::renewal;
use super::settings::Settings;
use super::slots::{LogLimit, Slots};
use super::wire::Wire;
use crate::identity::{Enrolment, Identity, Role, UnixTime};

/// The shared state of one endpoint.
pub(super) struct EndpointState {
    pub(super) settings: Settings,
    pub(super) links: Arc<Links>,
    pub(super) allow_list: AllowList,
    pub(super) presented: Arc<PresentedCredentials>,
    /// `None` if this endpoint issues no certificates.
    pub(super) enrolment: Option<Enrolment>,
    /// The clock that measures the validity of certificates.
    pub(super) clock: Arc<dyn TimeProvider>,
    /// The task that asks for new credentials holds it: of several coordinators, only one is asked.
    pub(super) renewing: Mutex<()>,
    /// Handshakes in progress that other nodes have begun.
    pub(super) slots: Slots,
    /// `None`: the endpoint does not probe its peers.
    pub(super) probes: Option<Probes>,
    /// Limits how many failures of handshakes are logged.
    pub(super) failures: Lock<LogLimit>,
}

impl EndpointState {
    pub(super) fn now(&self) -> UnixTime {
        self.clock.current_time().unwrap_or_else(UnixTime::now)
    }

    /// The link on a connection with a known peer and its control lane.
    pub(super) fn link(
        self: &Arc<Self>,
        connection: Connection,
        met: Identity,
        lane: (SendStream, RecvStream),
    ) -> Link {
        self.slots.know(connection.remote_address().ip());
        let wire = Wire::new(connection, &met, self.links.clone());
        // The allow list is asked again, now that the table has the link. So a peer that the allow
        // list drops meanwhile is closed here or there.
        if !self.allow_list.admits(&met) {
            wire.expel();
        }
        let role = self.presented.credentials().identity().role;
        // Workers hear of each other's deaths from the coordinators.
        let watched = [role, met.role].contains(&Role::Coordinator);
        let probes = self.probes.as_ref().filter(|_| watched);
        if let Some((interval, probes)) = self.settings.probe.zip(probes) {
            let peer = probes.watch(&wire.connection);
            tokio::spawn(probe::watch(wire.clone(), peer, interval));
        }
        let renews = met.role == Role::Coordinator && self.enrolment.is_none();
        let link = Link::start(self, wire, met, lane);
        if renews {
            tokio::spawn(renewal::run(self.clone(), link.renewal_client()));
        }
        link
    }

    pub(super) fn handshake_failed(&self, address: SocketAddr, error: &HandshakeError) {
        self.links.failed_handshakes.fetch_add(1, Ordering::Relaxed);
        // Any host can fail as often as packets come, so most of these lines are only counted.
        let admitted = self.failures.lock().expect("counting does not panic").admit(Instant::now());
        if let Some(withheld) = admitted {
            let reason = format!("{address}: {error}");
            tracing::warn!(reason, withheld, "a handshake failed");
        }
    }
}
