//! The actor around the node. Inputs come as messages, and the actor carries out effects at once.

mod admit;
mod effects;
mod event_log;
mod lines;
mod peer_links;
mod recorded_history;
mod restored_node;

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, MessageResult};
use everstep_transport::identity::Identity;
use everstep_transport::protocol::{self, CoordinatorId, CoordinatorView, Lineage, NodeName, Step};
use everstep_transport::quic::{Endpoint, Link, LinkError};
use everstep_transport::time::Time;
use tokio::sync::watch;

use self::admit::Admissions;
use self::lines::DurableLines;
use self::peer_links::PeerLinks;
use self::recorded_history::RecordedHistory;
pub(super) use self::restored_node::RestoredNode;
use super::CoordinatorError;
use super::api::{NotLeading, OperatorRequest, OperatorRequests, Query, QueryContext};
#[cfg(feature = "failpoints")]
use super::failpoint;
use super::membership_file::MembershipWriter;
use super::pending_reads::{LinearizableRead, PendingReads};
use crate::core::{LinkId, ShellInput};
use crate::log::LogWriter;
use crate::node::{Node, NodeInput};
use crate::raft::WriteBatch;

/// A link to a peer that has proved its identity.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct PeerConnected {
    pub(super) id: LinkId,
    pub(super) link: Link,
}

/// A peer has sent a message, or its link has ended.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct PeerInput {
    pub(super) link: LinkId,
    pub(super) received: Result<protocol::Message, LinkError>,
}

/// Time has passed. The coordinator looks at the clock by itself as well. Answers with an error
/// that has stopped it, or with true once the other coordinators go on without it.
#[derive(Message)]
#[rtype(result = "Result<bool, CoordinatorError>")]
pub(super) struct Tick;

/// Another coordinator refuses links with this one, because the cluster has removed it.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Expelled;

/// The process wants to stop. Answers whether it may: after it led, another one does, or there is
/// none.
#[derive(Message)]
#[rtype(result = "bool")]
pub(super) struct Leave;

/// The process ends. The actor stops at once.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Stop;

/// A report of a writing thread: the newest durable batch of the log and the number of entries that
/// became durable with it, or the error of a file.
#[derive(Message)]
#[rtype(result = "()")]
struct Written(Result<(u64, usize), CoordinatorError>);

/// The missing history is durable, or its file has failed. The number is
/// the entry from which on it was missing, at the start of the write.
#[derive(Message)]
#[rtype(result = "()")]
struct HistoryDurable(u64, Result<(), CoordinatorError>);

/// Metrics lines are durable up to a step, or their file has failed.
#[derive(Message)]
#[rtype(result = "()")]
struct LinesDurable(Result<(Lineage, Step), CoordinatorError>);

/// The log's thread, and the number of entries that it has not made durable yet.
struct LogWriting {
    writer: LogWriter,
    backlog: watch::Sender<usize>,
}

impl LogWriting {
    fn persist(&mut self, batch: WriteBatch) {
        self.backlog.send_modify(|waiting| *waiting += batch.entries.len());
        self.writer.persist(batch);
    }

    /// So many entries more are durable.
    fn written(&self, entries: usize) {
        self.backlog.send_modify(|waiting| *waiting -= entries);
    }
}

/// Why the actor does no more work, or soon will not.
#[derive(Default)]
struct ActorEnd {
    /// The process wants to stop.
    is_leaving: bool,
    /// The other coordinators go on without this one.
    is_removed: bool,
    /// A file has failed: the actor does nothing any more.
    failure: Option<CoordinatorError>,
}

/// The actor around one node, with its files, its links and its waiting clients.
pub(crate) struct CoordinatorActor {
    node: Node,
    /// The node's time zero.
    start: Instant,
    own: Addr<CoordinatorActor>,
    peers: PeerLinks,
    log: LogWriting,
    history: RecordedHistory,
    lines: DurableLines,
    membership: MembershipWriter,
    admissions: Admissions,
    requests: OperatorRequests,
    reads: PendingReads,
    end: ActorEnd,
    #[cfg(feature = "failpoints")]
    passing: failpoint::Passing,
}

impl CoordinatorActor {
    pub(super) fn new(
        restored: RestoredNode,
        endpoint: Arc<Endpoint>,
        backlog: watch::Sender<usize>,
        missing: watch::Sender<Vec<CoordinatorView>>,
        address: Addr<CoordinatorActor>,
    ) -> Self {
        let RestoredNode { node, start, log, history_file, lines, sync, history, .. } = restored;
        let RestoredNode { told, membership, keys, operator, tokens, applicants, .. } = restored;
        // The backlog bounds the mailbox of these reports.
        let (own, written) = (address.clone(), address.clone());
        let membership = membership.keep(move |error| written.do_send(Written(Err(error.into()))));
        let writer = log.write(sync, move |report| {
            #[cfg(feature = "failpoints")]
            report.iter().for_each(|batches| failpoint::on_appended(batches));
            let count = report.map(|batches| {
                let newest = batches.last().map_or(0, |batch| batch.number);
                (newest, batches.iter().map(|batch| batch.entries.len()).sum())
            });
            address.do_send(Written(count.map_err(CoordinatorError::from)));
        });
        Self {
            node,
            start,
            own,
            peers: PeerLinks::new(endpoint, missing),
            log: LogWriting { writer, backlog },
            history: RecordedHistory::new(history_file, history, told),
            lines: DurableLines::new(lines),
            membership,
            admissions: Admissions::new(keys, operator, tokens, applicants),
            requests: OperatorRequests::default(),
            reads: PendingReads::default(),
            end: ActorEnd::default(),
            #[cfg(feature = "failpoints")]
            passing: failpoint::Passing::default(),
        }
    }

    /// Reads the monotonic clock. Every handler calls this first, since timers starve under load.
    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// Gives the node an input, and carries out what follows from it.
    fn on_input(&mut self, input: impl Into<NodeInput>) {
        let input = input.into();
        if self.end.failure.is_some() {
            return;
        }
        #[cfg(feature = "failpoints")]
        failpoint::on_input(&input);
        let now = self.now();
        self.node.set_clock(now, unix_ms());
        let handled = self.node.handle(now, input).map_err(CoordinatorError::from);
        if let Err(error) = handled.and_then(|()| self.perform_all()) {
            // Later effects may rest on a write that failed.
            self.end.failure = Some(error);
        }
    }

    fn tick(&mut self) {
        self.on_input(NodeInput::Tick);
        self.peers.rest(self.node.rests());
        if let Some(place) = self.is_led_elsewhere() {
            self.reads.refuse(place);
        }
        self.seek_missing();
    }

    /// Ticks now, and whenever the node has something to do by itself.
    fn keep_time(&mut self, context: &mut Context<Self>) {
        self.tick();
        context.run_later(self.node.quiet(), Self::keep_time);
    }

    /// Whether the process may stop.
    fn may_leave(&self) -> bool {
        let follows = self.node.leads().is_none() && self.node.leader().is_some();
        self.end.failure.is_some() || follows || self.node.replica().members().voters.len() <= 1
    }

    /// Where another coordinator leads, in words.
    fn is_led_elsewhere(&self) -> Option<NotLeading> {
        let leader = self.node.leader().filter(|_| self.node.leads().is_none())?;
        let views = self.node.core().state().coordinators();
        Some(NotLeading::of(views.iter().find(|view| view.id == leader.into())))
    }

    /// Logs once that another coordinator has fallen silent, when its last link is gone.
    fn miss(&mut self, identity: &Identity, error: &LinkError) {
        if !self.end.is_leaving && self.peers.has_fallen_silent(identity) {
            let (id, name) = (self.id_of(&identity.name).map(|id| id.0), &identity.name);
            let reason = error.to_string();
            tracing::warn!(id, %name, reason, "another coordinator has fallen silent");
        }
    }

    /// Logs once that a coordinator that had fallen silent is back.
    fn greet(&mut self, identity: &Identity) {
        if self.peers.is_back(identity) {
            let (id, name) = (self.id_of(&identity.name).map(|id| id.0), &identity.name);
            tracing::info!(id, %name, "the other coordinator is back");
        }
    }

    fn id_of(&self, name: &NodeName) -> Option<CoordinatorId> {
        let views = self.node.core().state().coordinators();
        views.iter().find(|view| view.name == *name).map(|view| view.id)
    }

    /// Answers a coordinator that lacks keys, which are in no log. Returns whether this was such a
    /// message.
    fn answer_for_keys(&self, from: LinkId, message: &protocol::Message) -> bool {
        let asks =
            matches!(message, protocol::Message::FetchKeys) && self.peers.is_coordinator(from);
        if asks {
            #[cfg(feature = "failpoints")]
            ["fetch_keys.receive", "keys.send"].into_iter().for_each(failpoint::on_stage);
            self.send(from, protocol::Message::Keys(self.admissions.keys.clone()));
        }
        asks
    }

    /// Keeps the newest list of coordinators, from whichever coordinator it comes.
    fn note(&mut self, from: LinkId, message: &protocol::Message) {
        if let protocol::Message::Coordinators { revision, members, .. } = message
            && self.peers.is_coordinator(from)
        {
            self.membership.heard(*revision, members.clone());
        }
    }
}

/// The wall clock stamps events only. A clock before 1970 is wrong anyway.
pub(super) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl Actor for CoordinatorActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        if let Some(mut applicants) = self.admissions.applicants.take() {
            let own = context.address();
            actix::spawn(async move {
                while let Some(admission) = applicants.recv().await {
                    if own.send(admission).await.is_err() {
                        return;
                    }
                }
            });
        }
        if let Err(error) = self.perform_all() {
            self.end.failure = Some(error);
        }
        self.keep_time(context);
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        let ignored_messages = self.node.core().ignored();
        tracing::info!(ignored_messages, "the coordinator stops");
    }
}

impl Handler<PeerConnected> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, PeerConnected { id, link }: PeerConnected, _: &mut Self::Context) {
        let (identity, address) = (link.identity().clone(), Some(link.remote_address()));
        tracing::debug!(peer = %identity, link = id.0, "connected");
        self.peers.insert(id, link);
        self.greet(&identity);
        self.on_input(ShellInput::Connected { link: id, identity, address });
    }
}

impl Handler<PeerInput> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, PeerInput { link, received }: PeerInput, _: &mut Self::Context) {
        match received {
            Ok(message) if self.answer_for_keys(link, &message) => {}
            Ok(message) => {
                self.note(link, &message);
                self.on_input(ShellInput::Message { from: link, message });
            }
            Err(error) => {
                self.on_input(ShellInput::Disconnected { link, end: error.clone().end() });
                if let Some(identity) = self.peers.remove(link) {
                    self.miss(&identity, &error);
                }
            }
        }
    }
}

impl Handler<Tick> for CoordinatorActor {
    type Result = Result<bool, CoordinatorError>;

    fn handle(&mut self, Tick: Tick, context: &mut Self::Context) -> Self::Result {
        self.tick();
        match self.end.failure.take() {
            None => Ok(self.end.is_removed),
            Some(failure) => {
                context.stop();
                Err(failure)
            }
        }
    }
}

impl Handler<Expelled> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Expelled: Expelled, _: &mut Self::Context) {
        self.end.is_removed = true;
    }
}

impl Handler<Leave> for CoordinatorActor {
    type Result = bool;

    fn handle(&mut self, Leave: Leave, _: &mut Self::Context) -> bool {
        if !std::mem::replace(&mut self.end.is_leaving, true) {
            self.on_input(NodeInput::HandOver);
        }
        self.may_leave()
    }
}

impl Handler<Stop> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Stop: Stop, context: &mut Self::Context) {
        context.stop();
    }
}

impl Handler<Written> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Written(report): Written, _: &mut Self::Context) {
        match report {
            Ok((newest, entries)) => {
                self.log.written(entries);
                let now = self.now();
                (0..entries).for_each(|_| self.history.summary.applied(now));
                self.on_input(NodeInput::Persisted(newest));
            }
            Err(error) => self.end.failure = Some(error),
        }
    }
}

impl Handler<HistoryDurable> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, HistoryDurable(before, done): HistoryDurable, _: &mut Self::Context) {
        self.history.synced();
        match done.and_then(|()| self.restored(before)) {
            Ok(()) => self.on_input(NodeInput::Tick),
            Err(error) => self.end.failure = Some(error),
        }
    }
}

impl Handler<LinesDurable> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, LinesDurable(done): LinesDurable, _: &mut Self::Context) {
        match self.lines_durable(done) {
            Ok(input) => self.on_input(input),
            Err(error) => self.end.failure = Some(error),
        }
    }
}

impl<A: Send> Handler<Query<A>> for CoordinatorActor {
    type Result = MessageResult<Query<A>>;

    fn handle(&mut self, Query(question): Query<A>, _: &mut Self::Context) -> Self::Result {
        let peers = self.peers.roles();
        let (now, core) = (self.now(), self.node.core());
        let RecordedHistory { file: history_file, summary: history, .. } = &self.history;
        let (coordinators, reachable) =
            (self.node.coordinator_statuses(now), self.node.reachable());
        let leader = self.node.leader();
        let lines = &self.lines.files;
        let known = QueryContext {
            now,
            core,
            history,
            lines,
            history_file,
            peers,
            coordinators,
            reachable,
            leader,
        };
        MessageResult(question(&known))
    }
}

impl Handler<LinearizableRead> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, read: LinearizableRead, _: &mut Self::Context) {
        if let Some(place) = self.is_led_elsewhere() {
            read.answer(Err(place.into()));
        } else if let Some(number) = self.reads.open(read) {
            self.on_input(ShellInput::Read(number));
        }
    }
}

impl Handler<OperatorRequest> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, request: OperatorRequest, _: &mut Self::Context) {
        let leads = self.node.leads().is_some();
        for input in self.requests.open(request, leads) {
            self.on_input(input);
        }
    }
}

#[cfg(test)]
mod tests;
