//! Carries out a node's effects.

use std::time::Duration;

use everstep_transport::identity::Role;
use everstep_transport::protocol::{self, HistoryEntry, HistoryEvent, ManifestToWrite};
use everstep_transport::quic::{Encoded, LinkError};

use tokio::task::spawn_blocking;

use super::restored_node::RecalledHistory;
use super::{CoordinatorActor, HistoryDurable, event_log};
use crate::core::{LinkId, ShellEffect};
use crate::daemon::CoordinatorError;
#[cfg(feature = "failpoints")]
use crate::daemon::failpoint;
use crate::daemon::files::reach;
use crate::lines::PAGE;
use crate::node::NodeEffect;
use crate::raft::Batch;

/// How long a coordinator may take to send the missing part of the history file, before the actor
/// asks another one.
const HISTORY_FETCH_TIMEOUT: Duration = Duration::from_millis(500);

impl CoordinatorActor {
    /// Carries out the node's effects, in its order, until there are none.
    pub(super) fn perform_all(&mut self) -> Result<(), CoordinatorError> {
        self.perform_pending()?;
        if self.node.leads().is_some()
            && let Some(input) = self.requests.repeat()
        {
            self.node.handle(self.now(), input)?;
            self.perform_pending()?;
        }
        self.restore()?;
        let state = self.node.core().state();
        #[cfg(feature = "failpoints")]
        self.passing.applied(state.index());
        let revision = state.revision();
        if revision > self.membership.revision() {
            let members = state.coordinators();
            self.membership.heard(revision, members);
        }
        self.expel();
        Ok(())
    }

    /// Carries out the present effects.
    fn perform_pending(&mut self) -> Result<(), CoordinatorError> {
        while let Some(effect) = self.node.poll_effect() {
            #[cfg(feature = "failpoints")]
            let done = failpoint::on_effect(&effect);
            self.perform(effect)?;
            #[cfg(feature = "failpoints")]
            done.pass();
        }
        Ok(())
    }

    /// Carries out an effect of the node.
    fn perform(&mut self, effect: NodeEffect) -> Result<(), CoordinatorError> {
        match effect {
            NodeEffect::Shell(effect) => self.perform_for_core(effect)?,
            NodeEffect::Persist(batch) => self.persist(batch)?,
            NodeEffect::Recall { to, from } => {
                let entries = self.history_file.page(from, self.node.core().state().index())?;
                self.send(to, protocol::Message::History { entries });
            }
            NodeEffect::Recalled(entries) => self.fill(entries)?,
            NodeEffect::Removed => self.removed = true,
        }
        Ok(())
    }

    /// Carries out an effect of the node's core.
    fn perform_for_core(&mut self, effect: ShellEffect) -> Result<(), CoordinatorError> {
        match effect {
            ShellEffect::Send { to, message } => {
                if !self.is_for_request(to, &message) {
                    self.send(to, message);
                }
            }
            ShellEffect::Broadcast { to, message } => self.broadcast(&to, &message),
            ShellEffect::Close { to, reason } => self.close(to, &reason),
            ShellEffect::History(entry) => self.record(entry)?,
            ShellEffect::OpenLines(history) => self.open_lines(&history)?,
            ShellEffect::AppendLines(records) => self.append_lines(&records)?,
            ShellEffect::SkipLines(to) => self.skip_lines(to)?,
            ShellEffect::TellLines { to, lineage, reach, after } => {
                let lines = self.lines.page(after, PAGE)?;
                self.send(to, protocol::Message::Lines { lineage, reach, lines });
            }
            ShellEffect::Update { to, after, in_file, update } => {
                self.update(to, (after, in_file), *update)?;
            }
            ShellEffect::OrderManifest { to, after, to_step, order } => {
                let lines = self.lines.between(after, to_step)?;
                let order = ManifestToWrite { lines, ..*order };
                self.send(to, protocol::Message::WriteManifest(order));
            }
            ShellEffect::Admitted { token, node, refusal } => {
                let waiting = self.admissions.remove(&(token, node)).unwrap_or_default();
                for answer in waiting {
                    let verdict = refusal.clone().map_or(Ok(()), Err);
                    let _ = answer.send(verdict); // an error means that no node waits any more
                }
            }
            ShellEffect::ReadReady(number) => self.reads.answer(number),
        }
        Ok(())
    }

    fn persist(&mut self, batch: Batch) -> Result<(), CoordinatorError> {
        if let Some(snapshot) = &batch.snapshot {
            let index = reach(snapshot)?;
            // A snapshot from another replica stands for the whole log.
            if batch.base == snapshot.position {
                self.history_file.lack(index)?;
                self.restores = Some(self.node.core().state().index());
            } else {
                self.history_file.seal(index)?;
            }
        }
        self.backlog.send_modify(|waiting| *waiting += batch.entries.len());
        let now = self.now();
        batch.entries.iter().for_each(|_| self.history.proposed(now));
        #[cfg(feature = "failpoints")]
        self.passing.written(&batch);
        self.writer.persist(batch);
        Ok(())
    }

    fn record(&mut self, entry: HistoryEntry) -> Result<(), CoordinatorError> {
        if entry.index > self.told {
            self.told = entry.index;
            for event in &entry.events {
                match event {
                    HistoryEvent::Event(event) => {
                        event_log::log(self.node.core().state(), event);
                        self.history.event(event);
                    }
                    HistoryEvent::Run(_) => self.history.begin(),
                }
            }
        }
        Ok(self.history_file.take(entry)?)
    }

    /// Another coordinator has sent the missing part of the history file, or a page of it.
    fn fill(&mut self, entries: Vec<HistoryEntry>) -> Result<(), CoordinatorError> {
        let wanted = self.history_file.wanted();
        self.history_file.fill(entries)?;
        // If that coordinator had no more, the actor does not ask again at once.
        if self.history_file.wanted() != wanted {
            self.asked = None;
        }
        Ok(())
    }

    /// Makes the fetched history durable, on a thread that may wait, once a snapshot of another
    /// coordinator is installed and no part is missing. This must not wait for the next snapshot:
    /// by then, the senders of the history may be gone for good.
    fn restore(&mut self) -> Result<(), CoordinatorError> {
        let Some(before) = self.is_whole_since() else { return Ok(()) };
        if !self.keeps {
            self.keeps = true;
            let (file, own) = (self.history_file.file()?, self.own.clone());
            spawn_blocking(move || {
                let done = file.make_durable().map_err(CoordinatorError::from);
                own.do_send(HistoryDurable(before, done));
            });
        }
        Ok(())
    }

    /// The entry from which on the history was missing. None if a part still is, or the core has
    /// all of it.
    fn is_whole_since(&self) -> Option<u64> {
        let index = self.node.core().state().index();
        let is_whole = self.history_file.wanted().is_none();
        self.restores.filter(|before| *before < index && is_whole)
    }

    /// The fetched history is durable. Gives it to the node, for the watchers.
    pub(super) fn restored(&mut self, before: u64) -> Result<(), CoordinatorError> {
        if self.is_whole_since() != Some(before) {
            return Ok(()); // another snapshot has come since
        }
        let index = self.node.core().state().index();
        // The core gets the history ahead of this coordinator when it applies those entries.
        let recalled = RecalledHistory::read(&self.history_file, index, index)?;
        (self.restores, self.told) = (None, index);
        self.history = recalled.summary;
        self.node.restore_history(recalled.cache);
        Ok(())
    }

    /// Lists the coordinators to dial, and asks one of them for the missing part of the history
    /// file.
    pub(super) fn seek_missing(&mut self) {
        let to_dial = self.node.to_dial();
        self.missing.send_if_modified(|missing| {
            let changed = *missing != to_dial;
            *missing = to_dial;
            changed
        });
        let now = self.now();
        let Some(from) = self.history_file.wanted() else { return };
        if self.asked.is_some_and(|asked| now.since(asked) < HISTORY_FETCH_TIMEOUT) {
            return;
        }
        let others =
            self.links.iter().filter(|(_, link)| link.identity().role == Role::Coordinator);
        let others: Vec<LinkId> = others.map(|(id, _)| *id).collect();
        // The actor asks each in its turn, since one may lack that part, too.
        let turn = (now.0 / HISTORY_FETCH_TIMEOUT.as_nanos() as u64) as usize;
        if let Some(to) = others.get(turn % others.len().max(1)) {
            self.asked = Some(now);
            #[cfg(feature = "failpoints")]
            failpoint::on_stage("fetch_history.send");
            self.send(*to, protocol::Message::FetchHistory { from });
        }
    }

    /// Whether this message is for a request of the API. The request has taken it then.
    fn is_for_request(&mut self, to: LinkId, message: &protocol::Message) -> bool {
        self.requests.hear(to, message, self.node.leads().is_some())
    }

    fn broadcast(&mut self, to: &[LinkId], message: &protocol::Message) {
        let encoded = Encoded::new(message);
        for link in to {
            #[cfg(feature = "failpoints")]
            failpoint::on_broadcast(message);
            if !self.is_for_request(*link, message) {
                self.send_encoded(*link, &encoded);
            }
        }
    }

    pub(super) fn send(&self, to: LinkId, message: protocol::Message) {
        self.send_encoded(to, &Encoded::new(&message));
    }

    /// Cuts off a peer that does not read. If the link is gone, its reader reports that.
    fn send_encoded(&self, to: LinkId, message: &Encoded) {
        let Some(link) = self.links.get(&to) else { return };
        match link.send_encoded(message) {
            Ok(()) => {}
            Err(error @ (LinkError::Full | LinkError::TooLarge { .. })) => {
                tracing::warn!(peer = %link.identity(), %error, "a message was not sent");
                link.close(&error.to_string());
            }
            Err(error) => tracing::debug!(peer = %link.identity(), %error, "the link is gone"),
        }
    }

    fn close(&self, to: LinkId, reason: &str) {
        if let Some(link) = self.links.get(&to) {
            link.close(reason);
        }
    }
}
