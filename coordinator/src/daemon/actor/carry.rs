//! Carries out a seat's effects.

use std::time::Duration;

use everstep_transport::identity::Role;
use everstep_transport::protocol::{self, Frame, News};
use everstep_transport::quic::{Encoded, LinkError};

use tokio::task::spawn_blocking;

use super::outfit::recalled;
use super::{Coordinator, HistoryKept, told};
use crate::core::LinkId;
use crate::daemon::CoordinatorError;
#[cfg(feature = "failpoints")]
use crate::daemon::failpoint;
use crate::daemon::files::reach;
use crate::lines::PAGE;
use crate::raft::Batch;
use crate::seat::Effect;

/// How long a coordinator may take to send the missing part of the journal, before the actor asks
/// another one.
const PATIENCE: Duration = Duration::from_millis(500);

impl Coordinator {
    /// Carries out the seat's effects, in its order, until there are none.
    pub(super) fn carry_out(&mut self) -> Result<(), CoordinatorError> {
        self.do_all()?;
        if self.seat.leads().is_some()
            && let Some(input) = self.petitions.say_again()
        {
            self.seat.handle(self.now(), input)?;
            self.do_all()?;
        }
        self.restore()?;
        let state = self.seat.core().state();
        #[cfg(feature = "failpoints")]
        self.passing.applied(state.index());
        let revision = state.revision();
        if revision > self.book.revision() {
            let members = state.coordinators();
            self.book.heard(revision, members);
        }
        self.expel();
        Ok(())
    }

    /// Carries out the present effects.
    fn do_all(&mut self) -> Result<(), CoordinatorError> {
        while let Some(effect) = self.seat.poll_effect() {
            #[cfg(feature = "failpoints")]
            let done = failpoint::on_effect(&effect);
            self.act(effect)?;
            #[cfg(feature = "failpoints")]
            done.pass();
        }
        Ok(())
    }

    fn act(&mut self, effect: Effect) -> Result<(), CoordinatorError> {
        match effect {
            Effect::Send { to, message } => {
                if !self.is_petition(to, &message) {
                    self.send(to, message);
                }
            }
            Effect::Broadcast { to, message } => self.broadcast(&to, &message),
            Effect::Close { to, reason } => self.close(to, &reason),
            Effect::History(frame) => self.record(frame)?,
            Effect::OpenLines(history) => self.open_lines(&history)?,
            Effect::AppendLines(records) => self.append_lines(&records)?,
            Effect::SkipLines(to) => self.skip_lines(to)?,
            Effect::TellLines { to, lineage, reach, after } => {
                let lines = self.lines.page(after, PAGE)?;
                self.send(to, protocol::Message::Lines { lineage, reach, lines });
            }
            Effect::Update { to, after, update } => self.update(to, after, *update)?,
            Effect::Admitted { token, node, refusal } => {
                let waiting = self.admissions.remove(&(token, node)).unwrap_or_default();
                for answer in waiting {
                    let verdict = refusal.clone().map_or(Ok(()), Err);
                    let _ = answer.send(verdict); // an error means that no node waits any more
                }
            }
            Effect::Looked(number) => self.looks.answer(number),
            Effect::Persist(batch) => self.persist(batch)?,
            Effect::Recall { to, from } => {
                let frames = self.journal.page(from, self.seat.core().state().index())?;
                self.send(to, protocol::Message::History { frames });
            }
            Effect::Recalled(frames) => self.fill(frames)?,
            Effect::Removed => self.removed = true,
        }
        Ok(())
    }

    fn persist(&mut self, batch: Batch) -> Result<(), CoordinatorError> {
        if let Some(snapshot) = &batch.snapshot {
            let index = reach(snapshot)?;
            // A snapshot from another replica stands for the whole log.
            if batch.base == snapshot.place {
                self.journal.lack(index)?;
                self.restores = Some(self.seat.core().state().index());
            } else {
                self.journal.seal(index)?;
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

    fn record(&mut self, frame: Frame) -> Result<(), CoordinatorError> {
        if frame.index > self.told {
            self.told = frame.index;
            for news in &frame.news {
                match news {
                    News::Event(event) => {
                        told::log(self.seat.core().state(), event);
                        self.history.event(event);
                    }
                    News::Run(_) => self.history.begin(),
                }
            }
        }
        Ok(self.journal.take(frame)?)
    }

    /// Another coordinator has sent the missing part of the journal, or a page of it.
    fn fill(&mut self, frames: Vec<Frame>) -> Result<(), CoordinatorError> {
        let wanted = self.journal.wanted();
        self.journal.fill(frames)?;
        // If that coordinator had no more, the actor does not ask again at once.
        if self.journal.wanted() != wanted {
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
            let (file, own) = (self.journal.file()?, self.own.clone());
            spawn_blocking(move || {
                let done = file.make_durable().map_err(CoordinatorError::from);
                own.do_send(HistoryKept(before, done));
            });
        }
        Ok(())
    }

    /// The entry from which on the history was missing. None if a part still is, or the core has
    /// all of it.
    fn is_whole_since(&self) -> Option<u64> {
        let index = self.seat.core().state().index();
        let is_whole = self.journal.wanted().is_none();
        self.restores.filter(|before| *before < index && is_whole)
    }

    /// The fetched history is durable. Gives it to the seat, for the watchers.
    pub(super) fn restored(&mut self, before: u64) -> Result<(), CoordinatorError> {
        if self.is_whole_since() != Some(before) {
            return Ok(()); // another snapshot has come since
        }
        let (mut frames, index) = (self.journal.all()?, self.seat.core().state().index());
        // The core gets frames ahead of this coordinator when it applies their entries.
        frames.retain(|frame| frame.index <= index);
        (self.restores, self.told) = (None, index);
        self.history = recalled(&frames);
        self.seat.restore_history(frames);
        Ok(())
    }

    /// Lists the coordinators to dial, and asks one of them for the missing part of the journal.
    pub(super) fn seek_missing(&mut self) {
        let to_dial = self.seat.to_dial();
        self.missing.send_if_modified(|missing| {
            let changed = *missing != to_dial;
            *missing = to_dial;
            changed
        });
        let now = self.now();
        let Some(from) = self.journal.wanted() else { return };
        if self.asked.is_some_and(|asked| now.since(asked) < PATIENCE) {
            return;
        }
        let others =
            self.links.iter().filter(|(_, link)| link.identity().role == Role::Coordinator);
        let others: Vec<LinkId> = others.map(|(id, _)| *id).collect();
        // The actor asks each in its turn, since one may lack that part, too.
        let turn = (now.0 / PATIENCE.as_nanos() as u64) as usize;
        if let Some(to) = others.get(turn % others.len().max(1)) {
            self.asked = Some(now);
            #[cfg(feature = "failpoints")]
            failpoint::on_stage("fetch_history.send");
            self.send(*to, protocol::Message::FetchHistory { from });
        }
    }

    /// Whether this message is for a petition. The petition has heard it then.
    fn is_petition(&mut self, to: LinkId, message: &protocol::Message) -> bool {
        self.petitions.hear(to, message, self.seat.leads().is_some())
    }

    fn broadcast(&mut self, to: &[LinkId], message: &protocol::Message) {
        let encoded = Encoded::new(message);
        for link in to {
            #[cfg(feature = "failpoints")]
            failpoint::on_broadcast(message);
            if !self.is_petition(*link, message) {
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
