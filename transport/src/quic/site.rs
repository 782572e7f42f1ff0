//! What all links of an endpoint share, whoever called.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex as Lock};
use std::time::Instant;

use quinn::{Connection, RecvStream, SendStream};
use rustls::time_provider::TimeProvider;
use tokio::sync::Mutex;

use super::link::Link;
use super::links::Links;
use super::presented::Presented;
use super::probe::{self, Probes};
use super::renewal;
use super::roster::Roster;
use super::settings::Settings;
use super::slots::{LogLimit, Slots};
use super::wire::Wire;
use crate::identity::{Enrolment, Identity, Role, UnixTime};

/// One for each endpoint.
pub(super) struct Site {
    pub(super) settings: Settings,
    pub(super) links: Arc<Links>,
    pub(super) roster: Roster,
    pub(super) presented: Arc<Presented>,
    /// None where no certificates are issued.
    pub(super) enrolment: Option<Enrolment>,
    /// What certificates' lives are measured by.
    pub(super) clock: Arc<dyn TimeProvider>,
    /// Held by whoever asks for new credentials: with several coordinators, one is asked.
    pub(super) renewing: Mutex<()>,
    /// Handshakes in progress that others have begun.
    pub(super) slots: Slots,
    /// None: peers are not asked whether they live.
    pub(super) probes: Option<Probes>,
    /// Which failures of handshakes are logged.
    pub(super) failures: Lock<LogLimit>,
}

impl Site {
    pub(super) fn now(&self) -> UnixTime {
        self.clock.current_time().unwrap_or_else(UnixTime::now)
    }

    /// The link on a connection whose peer is known and has its control lane.
    pub(super) fn link(
        self: &Arc<Self>,
        connection: Connection,
        met: Identity,
        lane: (SendStream, RecvStream),
    ) -> Link {
        self.slots.know(connection.remote_address().ip());
        let wire = Wire::new(connection, &met, self.links.clone());
        // Asked again, now that the table has it: who is removed meanwhile is closed here or there.
        if !self.roster.admits(&met) {
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
            tokio::spawn(renewal::attend(self.clone(), link.asker()));
        }
        link
    }

    pub(super) fn handshake_failed(&self, reason: &str) {
        self.links.failed_handshakes.fetch_add(1, Ordering::Relaxed);
        // Anybody can fail as often as packets come: lines are counted, not written.
        let admitted = self.failures.lock().expect("counting does not panic").admit(Instant::now());
        if let Some(withheld) = admitted {
            tracing::warn!(reason, withheld, "a handshake failed");
        }
    }
}
