//! Carries out a node's effects.

use everstep_transport::protocol::{self, HistoryEntry, ManifestToWrite};
use everstep_transport::quic::Encoded;

use tokio::task::spawn_blocking;

use super::{CoordinatorActor, HistoryDurable, event_log};
use crate::core::{LinkId, ShellEffect};
use crate::daemon::CoordinatorError;
#[cfg(feature = "failpoints")]
use crate::daemon::failpoint;
use crate::daemon::files::reach;
use crate::lines::PAGE;
use crate::node::NodeEffect;
use crate::raft::WriteBatch;

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
                let entries = self.history.file.page(from, self.node.core().state().index())?;
                self.send(to, protocol::Message::History { entries });
            }
            NodeEffect::Recalled(entries) => self.history.fill(entries)?,
            NodeEffect::Removed => self.end.is_removed = true,
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
            ShellEffect::Close { to, reason } => self.peers.close(to, &reason),
            ShellEffect::History(entry) => self.record(entry)?,
            ShellEffect::OpenLines(history) => self.open_lines(&history)?,
            ShellEffect::AppendLines(records) => self.append_lines(&records)?,
            ShellEffect::SkipLines(to) => self.skip_lines(to)?,
            ShellEffect::TellLines { to, lineage, reach, after } => {
                let lines = self.lines.files.page(after, PAGE)?;
                self.send(to, protocol::Message::Lines { lineage, reach, lines });
            }
            ShellEffect::Update { to, after, in_file, update } => {
                self.update(to, after, in_file, *update)?;
            }
            ShellEffect::OrderManifest { to, after, to_step, order } => {
                let lines = self.lines.files.between(after, to_step)?;
                let order = ManifestToWrite { lines, ..*order };
                self.send(to, protocol::Message::WriteManifest(order));
            }
            ShellEffect::Admitted { token, node, refusal } => {
                self.admissions.answer(token, node, refusal);
            }
            ShellEffect::ReadReady(number) => self.reads.answer(number),
        }
        Ok(())
    }

    fn persist(&mut self, batch: WriteBatch) -> Result<(), CoordinatorError> {
        if let Some(snapshot) = &batch.snapshot {
            let index = reach(snapshot)?;
            // A snapshot from another replica stands for the whole log.
            if batch.base == snapshot.position {
                self.history.lack(index, self.node.core().state().index())?;
            } else {
                self.history.file.seal(index)?;
            }
        }
        let now = self.now();
        batch.entries.iter().for_each(|_| self.history.summary.proposed(now));
        #[cfg(feature = "failpoints")]
        self.passing.written(&batch);
        self.log.persist(batch);
        Ok(())
    }

    fn record(&mut self, entry: HistoryEntry) -> Result<(), CoordinatorError> {
        let state = self.node.core().state();
        Ok(self.history.record(entry, |event| event_log::log(state, event))?)
    }

    /// Makes the fetched history durable, on a thread that may wait, once a snapshot of another
    /// coordinator is installed and no part is missing. This must not wait for the next snapshot:
    /// by then, the senders of the history may be gone for good.
    fn restore(&mut self) -> Result<(), CoordinatorError> {
        let applied = self.node.core().state().index();
        if let Some((before, file)) = self.history.begin_sync(applied)? {
            let own = self.own.clone();
            spawn_blocking(move || {
                let done = file.make_durable().map_err(CoordinatorError::from);
                own.do_send(HistoryDurable(before, done));
            });
        }
        Ok(())
    }

    /// The fetched history is durable. Gives it to the node, for the watchers.
    pub(super) fn restored(&mut self, before: u64) -> Result<(), CoordinatorError> {
        let applied = self.node.core().state().index();
        if let Some(history) = self.history.restored(before, applied)? {
            self.node.restore_history(history);
        }
        Ok(())
    }

    /// Lists the coordinators to dial, and asks one of them for the missing part of the history
    /// file.
    pub(super) fn seek_missing(&mut self) {
        self.peers.dial(self.node.to_dial());
        let now = self.now();
        let Some((from, turn)) = self.history.to_fetch(now) else { return };
        if let Some(to) = self.peers.coordinator_of_turn(turn) {
            self.history.fetches(now);
            #[cfg(feature = "failpoints")]
            failpoint::on_stage("fetch_history.send");
            self.send(to, protocol::Message::FetchHistory { from });
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
                self.peers.send(*link, &encoded);
            }
        }
    }

    pub(super) fn send(&self, to: LinkId, message: protocol::Message) {
        self.peers.send(to, &Encoded::new(&message));
    }
}
