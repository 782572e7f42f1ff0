//! The actor around the node. Inputs come as messages, and the actor carries out effects at once.

mod admit;
mod effects;
mod event_log;
mod lines;
mod restored_node;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, MessageResult};
use everstep_transport::identity::{Identity, Refusal, Role, TokenId, Tokens};
use everstep_transport::protocol::{
    self, CoordinatorId, CoordinatorView, Keys, Lineage, NodeName, Step,
};
use everstep_transport::quic::{Endpoint, Link};
use everstep_transport::time::Time;
use tokio::sync::{mpsc, oneshot, watch};

use self::lines::LineSync;
pub(super) use self::restored_node::RestoredNode;
use super::CoordinatorError;
use super::admission::AdmissionRequest;
use super::api::{NotLeading, OperatorRequest, OperatorRequests, Query, QueryContext};
#[cfg(feature = "failpoints")]
use super::failpoint;
use super::files::OperatorFolder;
use super::history_file::HistoryFile;
use super::membership_file::MembershipWriter;
use super::pending_reads::{LinearizableRead, PendingReads};
use crate::core::{LinkId, ShellInput};
use crate::history::HistorySummary;
use crate::line_file::LineFiles;
use crate::log::LogWriter;
use crate::node::{Node, NodeInput};

/// A link to a peer that has proved its identity.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct PeerConnected {
    pub(super) id: LinkId,
    pub(super) link: Link,
}

/// A peer has sent a message, or its link is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct PeerInput(pub(super) NodeInput);

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
/// [`CoordinatorActor::restores`] at the start of the write.
#[derive(Message)]
#[rtype(result = "()")]
struct HistoryDurable(u64, Result<(), CoordinatorError>);

/// Metrics lines are durable up to a step, or their file has failed.
#[derive(Message)]
#[rtype(result = "()")]
struct LinesDurable(Result<(Lineage, Step), CoordinatorError>);

/// The admissions that the log still has to agree on, with the tasks that wait for each.
type WaitingApplicants = BTreeMap<(TokenId, NodeName), Vec<oneshot::Sender<Result<(), Refusal>>>>;

/// The actor around one node, with its files, its links and its waiting clients.
pub(crate) struct CoordinatorActor {
    node: Node,
    endpoint: Arc<Endpoint>,
    /// The removed coordinators that get no link.
    shut_out: Vec<NodeName>,
    /// The newest entry that revoked a node, as far as the endpoint knows.
    revoked: u64,
    operator: OperatorFolder,
    links: BTreeMap<LinkId, Link>,
    /// Coordinators that had a link and have none. The process has logged that already.
    silent: BTreeSet<NodeName>,
    /// The node's time zero.
    start: Instant,
    writer: LogWriter,
    /// How many entries of the writer are not durable yet.
    backlog: watch::Sender<usize>,
    history_file: HistoryFile,
    lines: LineFiles,
    line_sync: LineSync,
    /// The newest entry that the sums of the history include.
    told: u64,
    /// Set while the core needs the history before a snapshot, which takes it on from this entry.
    restores: Option<u64>,
    /// Whether that history is here, and a thread makes it durable.
    keeps: bool,
    own: Addr<CoordinatorActor>,
    /// When the actor last asked for the missing part of the history file.
    asked: Option<Time>,
    history: HistorySummary,
    membership: MembershipWriter,
    keys: Keys,
    /// The tokens that admit nodes before the cluster is founded.
    tokens: Tokens,
    admissions: WaitingApplicants,
    applicants: Option<mpsc::Receiver<AdmissionRequest>>,
    /// Coordinators that the process has to dial.
    missing: watch::Sender<Vec<CoordinatorView>>,
    requests: OperatorRequests,
    reads: PendingReads,
    /// The process wants to stop.
    leaving: bool,
    /// The other coordinators go on without this one.
    removed: bool,
    /// A file has failed: the actor does nothing any more.
    failure: Option<CoordinatorError>,
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
        let RestoredNode { told, membership, keys, .. } = restored;
        // A predecessor may have lacked a part.
        let restores = history_file.wanted().map(|_| 0);
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
            endpoint,
            shut_out: Vec::new(),
            revoked: 0,
            operator: restored.operator,
            links: BTreeMap::new(),
            silent: BTreeSet::new(),
            start,
            writer,
            backlog,
            history_file,
            lines,
            line_sync: LineSync::default(),
            told,
            restores,
            keeps: false,
            own,
            asked: None,
            history,
            membership,
            keys,
            tokens: restored.tokens,
            admissions: BTreeMap::new(),
            applicants: Some(restored.applicants),
            missing,
            requests: OperatorRequests::default(),
            reads: PendingReads::default(),
            leaving: false,
            removed: false,
            failure: None,
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
        if self.failure.is_some() {
            return;
        }
        #[cfg(feature = "failpoints")]
        failpoint::on_input(&input);
        let now = self.now();
        self.node.set_clock(now, unix_ms());
        let handled = self.node.handle(now, input).map_err(CoordinatorError::from);
        if let Err(error) = handled.and_then(|()| self.perform_all()) {
            // Later effects may rest on a write that failed.
            self.failure = Some(error);
        }
    }

    fn tick(&mut self) {
        self.on_input(NodeInput::Tick);
        self.endpoint.rest(self.node.rests());
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
        self.failure.is_some() || follows || self.node.replica().members().voters.len() <= 1
    }

    /// Where another coordinator leads, in words.
    fn is_led_elsewhere(&self) -> Option<NotLeading> {
        let leader = self.node.leader().filter(|_| self.node.leads().is_none())?;
        let views = self.node.core().state().coordinators();
        Some(NotLeading::of(views.iter().find(|view| view.id == leader.0)))
    }

    /// Logs once that another coordinator has fallen silent, when its last link is gone.
    fn miss(&mut self, identity: &Identity, reason: &str) {
        let is_linked = self.links.values().any(|link| link.identity() == identity);
        let is_one = identity.role == Role::Coordinator && !self.shut_out.contains(&identity.name);
        if is_one && !is_linked && !self.leaving && self.silent.insert(identity.name.clone()) {
            let (id, name) = (self.id_of(&identity.name), &identity.name);
            tracing::warn!(id, %name, reason, "another coordinator has fallen silent");
        }
    }

    /// Logs once that a coordinator that had fallen silent is back.
    fn greet(&mut self, identity: &Identity) {
        if identity.role == Role::Coordinator && self.silent.remove(&identity.name) {
            let (id, name) = (self.id_of(&identity.name), &identity.name);
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
        let of_coordinator =
            self.links.get(&from).is_some_and(|link| link.identity().role == Role::Coordinator);
        let asks = matches!(message, protocol::Message::FetchKeys) && of_coordinator;
        if asks {
            #[cfg(feature = "failpoints")]
            ["fetch_keys.receive", "keys.send"].into_iter().for_each(failpoint::on_stage);
            self.send(from, protocol::Message::Keys(self.keys.clone()));
        }
        asks
    }

    /// Keeps the newest list of coordinators, from whichever coordinator it comes.
    fn note(&mut self, from: LinkId, message: &protocol::Message) {
        let link = self.links.get(&from);
        if let protocol::Message::Coordinators { revision, members, .. } = message
            && link.is_some_and(|link| link.identity().role == Role::Coordinator)
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
        if let Some(mut applicants) = self.applicants.take() {
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
            self.failure = Some(error);
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
        let identity = link.identity().clone();
        tracing::debug!(peer = %identity, link = id.0, "connected");
        self.links.insert(id, link);
        self.greet(&identity);
        self.on_input(ShellInput::Connected { link: id, identity });
    }
}

impl Handler<PeerInput> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, PeerInput(input): PeerInput, _: &mut Self::Context) {
        let gone = match &input {
            NodeInput::Shell(ShellInput::Disconnected { link, reason, .. }) => {
                Some((*link, reason.clone()))
            }
            NodeInput::Shell(ShellInput::Message { from, message })
                if self.answer_for_keys(*from, message) =>
            {
                return;
            }
            NodeInput::Shell(ShellInput::Message { from, message }) => {
                self.note(*from, message);
                None
            }
            _ => None,
        };
        self.on_input(input);
        if let Some((link, reason)) = gone
            && let Some(link) = self.links.remove(&link)
        {
            self.miss(link.identity(), &reason);
        }
    }
}

impl Handler<Tick> for CoordinatorActor {
    type Result = Result<bool, CoordinatorError>;

    fn handle(&mut self, Tick: Tick, context: &mut Self::Context) -> Self::Result {
        self.tick();
        match self.failure.take() {
            None => Ok(self.removed),
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
        self.removed = true;
    }
}

impl Handler<Leave> for CoordinatorActor {
    type Result = bool;

    fn handle(&mut self, Leave: Leave, _: &mut Self::Context) -> bool {
        if !std::mem::replace(&mut self.leaving, true) {
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
                self.backlog.send_modify(|waiting| *waiting -= entries);
                let now = self.now();
                (0..entries).for_each(|_| self.history.applied(now));
                self.on_input(NodeInput::Persisted(newest));
            }
            Err(error) => self.failure = Some(error),
        }
    }
}

impl Handler<HistoryDurable> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, HistoryDurable(before, done): HistoryDurable, _: &mut Self::Context) {
        self.keeps = false;
        match done.and_then(|()| self.restored(before)) {
            Ok(()) => self.on_input(NodeInput::Tick),
            Err(error) => self.failure = Some(error),
        }
    }
}

impl Handler<LinesDurable> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, LinesDurable(done): LinesDurable, _: &mut Self::Context) {
        match self.lines_durable(done) {
            Ok(input) => self.on_input(input),
            Err(error) => self.failure = Some(error),
        }
    }
}

impl<A: Send> Handler<Query<A>> for CoordinatorActor {
    type Result = MessageResult<Query<A>>;

    fn handle(&mut self, Query(question): Query<A>, _: &mut Self::Context) -> Self::Result {
        let peers = self.links.values().map(|link| link.identity().role).collect();
        let (now, core, history) = (self.now(), self.node.core(), &self.history);
        let (coordinators, reachable) =
            (self.node.coordinator_statuses(now), self.node.reachable());
        let leader = self.node.leader();
        let lines = &self.lines;
        let known = QueryContext {
            now,
            core,
            history,
            lines,
            history_file: &self.history_file,
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
