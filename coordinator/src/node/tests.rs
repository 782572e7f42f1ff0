//! Several nodes on virtual time. A disk takes a millisecond and a link half a millisecond. A
//! killed node keeps its disk.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::Ipv4Addr;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::reason::LinkEnd;
use everstep_transport::protocol::{
    CoordinatorId, HistoryEvent, NodeName, OperatorCommand, Question, Reply, RequestId, RunSpec,
    exemplars,
};

use super::*;
use crate::core::EventsAfter;
use crate::lines::LinesFound;
use crate::state::{FOUNDER, LOG_FORMATS, State};

mod membership;
mod state_comparison;
mod worker_reach;

const DISK_LATENCY: Duration = Duration::from_millis(1);
const LINK_LATENCY: Duration = Duration::from_micros(500);

#[derive(Debug)]
enum SimEvent {
    /// A batch is durable on the disk of a node that was started the nth time.
    Written(CoordinatorId, u64, WriteBatch),
    Arrives(CoordinatorId, Box<NodeInput>),
    /// The disk of this node stands still from now on.
    Stalls(CoordinatorId),
    /// This node dies, and the messages that it has just sent are lost.
    Dies(CoordinatorId),
    Nothing,
}

struct World {
    now: Time,
    nodes: BTreeMap<CoordinatorId, Node>,
    disks: BTreeMap<CoordinatorId, DurableState>,
    starts: BTreeMap<CoordinatorId, u64>,
    /// From each end of a link to the other: the node at the other end, and its name for the link.
    /// None stands for the test itself.
    links: BTreeMap<LinkId, (Option<CoordinatorId>, LinkId)>,
    coming: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, SimEvent>,
    count: u64,
    /// The newest event that each node has added to its history.
    told: BTreeMap<CoordinatorId, u64>,
    /// What each entry has added to the history.
    history: BTreeMap<u64, HistoryEntry>,
    /// The messages that the nodes sent to the test, by link.
    said: BTreeMap<LinkId, Vec<Message>>,
    removed: Vec<CoordinatorId>,
    /// The names that any node has shut out.
    shut_out: BTreeSet<NodeName>,
    /// The node that dies of the next snapshot that arrives. None once it has.
    struck: Option<CoordinatorId>,
    /// The node with a disk that stands still.
    stalled: Option<CoordinatorId>,
    /// The node that hears no message of the log.
    deaf: Option<CoordinatorId>,
    /// Whether the others send the history before a snapshot.
    tells: bool,
    /// The newest snapshot that one node sent to another.
    snapshot: Option<Message>,
}

fn own(number: u64) -> CoordinatorInfo {
    let name = NodeName::parse(&format!("coordinator-{number}")).expect("a valid name");
    let address = (Ipv4Addr::LOCALHOST, number as u16).into();
    CoordinatorInfo {
        name,
        incarnation: number,
        address,
        api: None,
        log_format: *LOG_FORMATS.end(),
    }
}

fn identity(role: Role, name: &str) -> Identity {
    Identity { role, name: NodeName::parse(name).expect("a valid name") }
}

impl World {
    /// One coordinator that founds a cluster.
    fn founded() -> Self {
        let mut world = Self::begun();
        world.pass(100);
        world
    }

    /// The same, before that coordinator leads.
    fn begun() -> Self {
        let mut world = Self {
            now: Time(0),
            nodes: BTreeMap::new(),
            disks: BTreeMap::from([(FOUNDER, DurableState::founded_by(FOUNDER.into()))]),
            starts: BTreeMap::new(),
            links: BTreeMap::new(),
            coming: BinaryHeap::new(),
            events: BTreeMap::new(),
            count: 0,
            told: BTreeMap::new(),
            history: BTreeMap::new(),
            said: BTreeMap::new(),
            removed: Vec::new(),
            shut_out: BTreeSet::new(),
            struck: None,
            stalled: None,
            deaf: None,
            tells: true,
            snapshot: None,
        };
        world.start(FOUNDER, own(1));
        world
    }

    /// Three coordinators. Returns their ids.
    fn of_three() -> (Self, [CoordinatorId; 3]) {
        let mut world = Self::founded();
        let ids = [FOUNDER, world.join(2), world.join(3)];
        world.pass(1_000);
        (world, ids)
    }

    fn start(&mut self, id: CoordinatorId, own: CoordinatorInfo) {
        let states = self.nodes.values().map(|node| node.core.state());
        let newest = states.max_by_key(|state| state.revision());
        let membership = newest.map_or((0, Vec::new()), |it| (it.revision(), it.coordinators()));
        self.start_knowing(id, own, membership);
    }

    fn start_knowing(
        &mut self,
        id: CoordinatorId,
        own: CoordinatorInfo,
        membership: (u64, Vec<CoordinatorView>),
    ) {
        let replica = RaftOptions {
            id: id.into(),
            seed: 1,
            keep: 100,
            #[cfg(feature = "planted")]
            plant: None,
        };
        let options = NodeOptions {
            own,
            replica,
            epoch_unix_ms: 0,
            snapshot_entries: 10_000,
            founds: (id == FOUNDER).then_some(false),
            tokens: Vec::new(),
            membership,
            lacks_history: false,
        };
        *self.starts.entry(id).or_default() += 1;
        let kept = self.disks.entry(id).or_default().clone();
        let node =
            Node::new(self.now, options, kept, HistoryCache::default()).expect("a sound disk");
        self.nodes.insert(id, node);
        self.drain(id);
    }

    /// Another coordinator joins. Returns its id.
    fn join(&mut self, number: u64) -> CoordinatorId {
        let id = self.apply_for(number);
        self.start(id, own(number));
        self.pass(200);
        id
    }

    /// Another coordinator applies to join. Returns the id that the leader gave it.
    fn apply_for(&mut self, number: u64) -> CoordinatorId {
        let own = own(number);
        let leader = self.leader().expect("a coordinator leads");
        let link = self.connect(leader, identity(Role::Coordinator, own.name.as_str()));
        let CoordinatorInfo { incarnation, address, api, .. } = own;
        self.say(
            link,
            Message::Join { id: None, incarnation, address, api, log_format: *LOG_FORMATS.end() },
        );
        self.pass(100);
        let joined = self.said[&link].iter().find_map(|message| match message {
            Message::Joined { id } => Some(*id),
            _ => None,
        });
        self.cut(link);
        joined.expect("it is one of them")
    }

    /// Connects the test, under an identity, to a node.
    fn connect(&mut self, to: CoordinatorId, identity: Identity) -> LinkId {
        let (here, there) = self.link(None, Some(to));
        self.give(to, ShellInput::Connected { link: there, identity, address: None });
        here
    }

    /// Connects the test, as an operator, to a node.
    fn operator(&mut self, to: CoordinatorId) -> LinkId {
        self.connect(to, identity(Role::Operator, "operator"))
    }

    fn link(
        &mut self,
        one: Option<CoordinatorId>,
        other: Option<CoordinatorId>,
    ) -> (LinkId, LinkId) {
        self.count += 2;
        let (here, there) = (LinkId(self.count), LinkId(self.count + 1));
        self.links.insert(here, (other, there));
        self.links.insert(there, (one, here));
        (here, there)
    }

    fn cut(&mut self, link: LinkId) {
        let Some((whose, there)) = self.links.remove(&link) else { return };
        self.links.remove(&there);
        if let Some(id) = whose {
            let (link, end) = (there, LinkEnd::Refused);
            let input = NodeInput::Shell(ShellInput::Disconnected { link, end });
            self.later(LINK_LATENCY, SimEvent::Arrives(id, input.into()));
        }
    }

    fn say(&mut self, link: LinkId, message: Message) {
        let (whose, from) = self.links[&link];
        let to = whose.expect("the test speaks to nodes");
        self.later(
            LINK_LATENCY,
            SimEvent::Arrives(to, NodeInput::Shell(ShellInput::Message { from, message }).into()),
        );
    }

    /// A node is gone from one moment to the next. The disk may still write the batches that it was
    /// given.
    fn kill(&mut self, id: CoordinatorId) {
        self.nodes.remove(&id);
        let ends: Vec<LinkId> =
            self.links.iter().filter(|(_, end)| end.0 == Some(id)).map(|(_, end)| end.1).collect();
        ends.into_iter().for_each(|end| self.cut(end));
    }

    fn later(&mut self, after: Duration, event: SimEvent) {
        self.count += 2;
        self.coming.push(Reverse((self.now + after, self.count)));
        self.events.insert(self.count, event);
    }

    fn give(&mut self, id: CoordinatorId, input: impl Into<NodeInput>) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.handle(self.now, input).expect("it goes on");
            self.shut_out.extend(node.shut_out().cloned());
            self.drain(id);
        }
    }

    fn drain(&mut self, id: CoordinatorId) {
        while let Some(effect) = self.nodes.get_mut(&id).and_then(Node::poll_effect) {
            match effect {
                NodeEffect::Shell(effect) => self.perform(id, effect),
                NodeEffect::Persist(batch) => {
                    self.assert_told(id, &batch);
                    let disk =
                        if self.stalled == Some(id) { 1_000 * DISK_LATENCY } else { DISK_LATENCY };
                    self.later(disk, SimEvent::Written(id, self.starts[&id], batch));
                }
                NodeEffect::Removed => self.removed.push(id),
                NodeEffect::Recall { .. } | NodeEffect::Recalled(_) => {}
            }
        }
    }

    fn perform(&mut self, id: CoordinatorId, effect: ShellEffect) {
        match effect {
            ShellEffect::Send { to, message } => self.carry(to, message),
            ShellEffect::Broadcast { to, message } => {
                to.into_iter().for_each(|to| self.carry(to, message.clone()));
            }
            ShellEffect::Close { to, .. } => self.cut(to),
            ShellEffect::History(entry) => {
                let events = entry.events.iter().filter_map(|event| match event {
                    HistoryEvent::Event(event) => Some(event.number),
                    HistoryEvent::Run(_) => None,
                });
                self.told.extend(events.max().map(|number| (id, number)));
                self.history.insert(entry.index, entry);
            }
            ShellEffect::OpenLines(history) => {
                let (lineage, found) = (history.lineage, LinesFound::default());
                self.give(id, ShellInput::LinesOpened { lineage, found });
            }
            ShellEffect::Update { to, in_file, update, .. } => {
                assert_eq!(in_file, None, "memory has all events of a short test");
                self.carry(to, Message::Update(*update));
            }
            ShellEffect::AppendLines(_)
            | ShellEffect::SkipLines(_)
            | ShellEffect::TellLines { .. }
            | ShellEffect::OrderManifest { .. }
            | ShellEffect::Admitted { .. }
            | ShellEffect::ReadReady(_) => {}
        }
    }

    /// The history has every event that a snapshot of the log replaces.
    fn assert_told(&mut self, id: CoordinatorId, batch: &WriteBatch) {
        let Some(snapshot) = batch.snapshot.as_ref().filter(|it| !it.bytes.is_empty()) else {
            return;
        };
        let state = State::decode(&snapshot.bytes, *LOG_FORMATS.end()).expect("a state");
        let newest = state.events().last().map_or(0, |event| event.number);
        if batch.base == snapshot.position {
            self.told.insert(id, newest); // another node's: the shell fetches the history
        }
        let told = self.told.get(&id).copied().unwrap_or(0);
        assert!(
            told >= newest,
            "node {id} takes a snapshot of {newest} events, and told of {told}"
        );
    }

    fn carry(&mut self, from: LinkId, message: Message) {
        if is_snapshot(&message) {
            self.snapshot = Some(message.clone());
        }
        match self.links.get(&from) {
            Some((Some(to), _)) if self.struck == Some(*to) && is_snapshot(&message) => {
                self.nodes.remove(to);
                self.struck = None;
            }
            Some((Some(to), _)) if self.deaf == Some(*to) && is_raft(&message) => {}
            Some((Some(to), there)) => {
                let input = NodeInput::Shell(ShellInput::Message { from: *there, message });
                self.later(LINK_LATENCY, SimEvent::Arrives(*to, input.into()));
            }
            Some((None, there)) => self.said.entry(*there).or_default().push(message),
            None => {}
        }
    }

    fn dial(&mut self) {
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            for view in self.nodes[&id].to_dial() {
                let Some(peer) = self.nodes.get(&view.id) else { continue };
                let there_is = peer.introduction.own().clone();
                let (here, there) = self.link(Some(id), Some(view.id));
                let own = self.nodes[&id].introduction.own().name.clone();
                let role = Role::Coordinator;
                self.give(
                    view.id,
                    NodeInput::Shell(ShellInput::Connected {
                        link: there,
                        identity: Identity { role, name: own },
                        address: None,
                    }),
                );
                let identity = Identity { role, name: there_is.name };
                self.give(id, ShellInput::Connected { link: here, identity, address: None });
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while self.now < end {
            let tick = self.now + NODE_TICK;
            while let Some(Reverse((at, number))) =
                self.coming.peek().copied().filter(|it| it.0.0 <= tick)
            {
                self.coming.pop();
                self.now = at.max(self.now);
                self.happen(number);
            }
            self.now = tick;
            for id in self.nodes.keys().copied().collect::<Vec<_>>() {
                self.give(id, NodeInput::Tick);
            }
            self.dial();
        }
    }

    fn happen(&mut self, number: u64) {
        match self.events.remove(&number).expect("it was put there") {
            SimEvent::Arrives(id, input) => self.give(id, *input),
            SimEvent::Stalls(id) => self.stalled = Some(id),
            SimEvent::Dies(id) => {
                let links = &self.links;
                let is_lost = |event: &SimEvent| match event {
                    SimEvent::Arrives(_, input) => match &**input {
                        NodeInput::Shell(ShellInput::Message { from, .. }) => {
                            links.get(from).is_some_and(|end| end.0 == Some(id))
                        }
                        _ => false,
                    },
                    _ => false,
                };
                let lost = self.events.iter_mut().filter(|(_, it)| is_lost(it));
                lost.for_each(|(_, it)| *it = SimEvent::Nothing);
                self.kill(id);
            }
            SimEvent::Nothing => {}
            SimEvent::Written(id, start, batch) => {
                if self.starts[&id] == start {
                    self.disks.get_mut(&id).expect("it has one").absorb(&batch);
                    self.give(id, NodeInput::Persisted(batch.number));
                    if batch.snapshot.is_some_and(|snapshot| snapshot.position == batch.base) {
                        self.recall(id);
                    }
                }
            }
        }
    }

    /// The others send a node the history before the snapshot that it has installed.
    fn recall(&mut self, id: CoordinatorId) {
        let Some(node) = self.nodes.get_mut(&id).filter(|_| self.tells) else { return };
        let known = self.history.range(..=node.core.state().index());
        let known = known.map(|(_, entry)| entry.clone());
        node.restore_history(HistoryCache::default().restored(known));
    }

    fn leader(&self) -> Option<CoordinatorId> {
        let mut leaders = self.nodes.iter().filter(|(_, node)| node.leads().is_some());
        leaders.next_back().map(|(id, _)| *id)
    }

    /// An operator asks the leader for a command. Returns the answer.
    fn command(&mut self, number: u64, command: OperatorCommand) -> Option<Option<String>> {
        let leader = self.leader().expect("a coordinator leads");
        let link = self.operator(leader);
        self.say(link, Message::Request { id: RequestId { client: 7, number }, command });
        self.pass(100);
        self.said.remove(&link)?.into_iter().find_map(|message| match message {
            Message::Answer { refusal, .. } => Some(refusal.map(|it| it.to_string())),
            _ => None,
        })
    }

    fn voters(&self, id: CoordinatorId) -> Vec<CoordinatorId> {
        self.nodes[&id].replica.members().voters.iter().copied().map(CoordinatorId::from).collect()
    }

    /// Invariant I14: nodes with an equal applied index have an equal state.
    fn assert_agreed(&self) {
        let states: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        self.nodes.values().fold(states, |mut known, node| {
            let state = node.core.state();
            let bytes = state.encode();
            let first = known.entry(state.index()).or_insert_with(|| bytes.clone());
            assert!(*first == bytes, "I14: two states at index {}", state.index());
            known
        });
    }
}

fn is_raft(message: &Message) -> bool {
    matches!(message, Message::Raft(_))
}

fn is_snapshot(message: &Message) -> bool {
    match message {
        Message::Raft(bytes) => raft::Message::decode(bytes).is_ok_and(|it| it.is_snapshot()),
        _ => false,
    }
}

#[test]
fn one_alone_founds_a_cluster_and_leads_it() {
    let world = World::founded();
    let node = &world.nodes[&FOUNDER];
    assert!(node.leads().is_some());
    assert!(node.core.state().knows(&own(1)));
    assert_eq!(world.voters(FOUNDER), [FOUNDER]);
}

#[test]
fn those_who_join_become_replicas_and_know_each_other() {
    let (world, ids) = World::of_three();
    for id in ids {
        assert_eq!(world.voters(id), ids, "as coordinator {id} knows");
        assert_eq!(world.nodes[&id].to_dial(), []);
    }
    world.assert_agreed();
}

#[test]
fn i9_what_was_answered_survives_the_death_of_all() {
    let (mut world, ids) = World::of_three();
    let run = exemplars::run();
    assert_eq!(world.command(1, OperatorCommand::Submit(run.clone().into())), Some(None));
    ids.iter().for_each(|id| world.kill(*id));
    world.pass(50);
    ids.iter().zip(1..).for_each(|(id, number)| world.start(*id, own(number)));
    world.pass(1_500);
    assert!(world.leader().is_some());
    for id in ids {
        assert_eq!(world.nodes[&id].core.state().run(), Some(&run));
    }
    world.assert_agreed();
}

/// It has not kept the request that came before it led.
#[test]
fn who_asks_one_that_has_just_begun_is_told_when_it_leads_and_asks_again() {
    let mut world = World::begun();
    assert_eq!(world.leader(), None);
    let link = world.connect(FOUNDER, identity(Role::Operator, "operator"));
    let (id, command) =
        (RequestId { client: 7, number: 1 }, OperatorCommand::Submit(exemplars::run().into()));
    let (from, message) = (world.links[&link].1, Message::Request { id, command });
    world.give(FOUNDER, ShellInput::Message { from, message: message.clone() });
    world.pass(100);
    let told = world.said.remove(&link).expect("it is told who leads");
    let leads = |it: &Message| matches!(it, Message::Coordinators { leader: Some(FOUNDER), .. });
    assert!(told.len() == 1 && leads(&told[0]), "{told:?}");
    world.say(link, message);
    world.pass(100);
    let run = Some(world.nodes[&FOUNDER].core.state().run_id());
    assert_eq!(world.said[&link], [Message::Answer { id, refusal: None, run }]);
}

/// A leader cannot answer a request that it cannot write.
#[test]
fn a_leader_whose_disk_stands_still_lets_another_one_lead() {
    let (mut world, _) = World::of_three();
    let before = world.leader().expect("one leads");
    world.stalled = Some(before);
    assert_eq!(
        world.command(1, OperatorCommand::Submit(exemplars::run().into())),
        None,
        "it cannot say yet"
    );
    world.pass(300);
    assert!(world.leader().is_some_and(|leader| leader != before));
    assert_eq!(world.command(1, OperatorCommand::Submit(exemplars::run().into())), Some(None));
}

#[test]
fn a_leader_whose_disk_is_no_slower_than_the_others_stays() {
    let mut world = World::founded();
    world.stalled = Some(FOUNDER);
    assert_eq!(
        world.command(1, OperatorCommand::Submit(exemplars::run().into())),
        None,
        "it cannot say yet"
    );
    world.pass(1_500);
    assert_eq!(world.leader(), Some(FOUNDER));
}

#[test]
fn when_the_leader_dies_another_leads_within_half_a_second_and_it_comes_back_as_a_follower() {
    let (mut world, ids) = World::of_three();
    for round in 0..4 {
        let leader = world.leader().expect("a coordinator leads");
        world.kill(leader);
        world.pass(500);
        let next = world.leader().expect("another leads");
        assert_ne!(next, leader);
        assert_eq!(
            world.command(round, OperatorCommand::RevokeToken([0; 9])).map(|_| ()),
            Some(())
        );
        let number = 1 + ids.iter().position(|id| *id == leader).expect("one of them") as u64;
        world.start(leader, own(number));
        world.pass(500);
        assert_eq!(world.leader(), Some(next), "who comes back disturbs nobody");
        world.assert_agreed();
    }
}

#[test]
fn who_leaves_hands_leadership_over_at_once() {
    let (mut world, _) = World::of_three();
    let leader = world.leader().expect("a coordinator leads");
    world.give(leader, NodeInput::HandOver);
    world.pass(25);
    assert!(world.leader().is_some_and(|next| next != leader));
}

/// The first heir has just died, or stands still, and the leader does not know that yet.
#[test]
fn who_leaves_asks_the_next_one_where_the_first_does_not_come_to_lead() {
    for deaf in [0, 1] {
        let (mut world, ids) = World::of_three();
        let leader = world.leader().expect("a coordinator leads");
        let mut heirs: Vec<_> = ids.into_iter().filter(|id| *id != leader).collect();
        world.deaf = Some(heirs.remove(deaf));
        world.give(leader, NodeInput::HandOver);
        world.pass(600);
        assert_eq!(world.leader(), Some(heirs[0]), "{:?} is deaf", world.deaf);
    }
}

/// The only disk stands still, and an operator goes on asking.
#[test]
fn i10_a_leader_for_whose_log_too_much_waits_leads_no_longer_before_its_disk_goes_on() {
    let mut world = World::founded();
    world.stalled = Some(FOUNDER);
    let link = world.operator(FOUNDER);
    let from = world.links[&link].1;
    let run = RunSpec { name: "r".repeat(60_000), ..exemplars::run() };
    let ask = |world: &mut World, number| {
        let (id, command) =
            (RequestId { client: 9, number }, OperatorCommand::Submit(run.clone().into()));
        world
            .give(FOUNDER, ShellInput::Message { from, message: Message::Request { id, command } });
        world.nodes[&FOUNDER].leads().is_some()
    };
    // As many bytes in the log as in the queue before it.
    let least = 2 * proposal_queue::MAX_QUEUED_BYTES as u64 / 61_000;
    assert!((0..least).all(|number| ask(&mut world, number)), "it has room");
    assert!((least..2 * least).any(|number| !ask(&mut world, number)), "it waits for ever more");
    assert!(world.nodes[&FOUNDER].proposal_queue.is_empty());
    world.stalled = None;
    world.pass(3_000);
    assert_eq!(world.leader(), Some(FOUNDER));
    assert_eq!(world.command(1, OperatorCommand::RevokeToken([0; 9])).map(|_| ()), Some(()));
}

/// Its new link may exist before the leader knows that the old one is lost.
#[test]
fn who_dies_of_a_snapshot_and_comes_back_at_once_gets_another() {
    let mut world = World::founded();
    let id = world.apply_for(2);
    world.struck = Some(id);
    world.start(id, own(2));
    world.pass(600);
    assert_eq!((world.struck, world.nodes.contains_key(&id)), (None, false), "it was sent one");
    let ends = world.links.iter().filter(|(_, (whose, _))| *whose == Some(id));
    let before: Vec<LinkId> = ends.map(|(_, (_, there))| *there).collect();
    world.start(id, own(2));
    world.pass(600);
    before.into_iter().for_each(|link| world.cut(link));
    world.pass(1_000);
    assert_eq!(world.voters(FOUNDER), [FOUNDER, id]);
}

/// Otherwise the sender of the snapshot would wait for ever.
#[test]
fn a_snapshot_from_one_that_is_not_known_costs_it_the_link() {
    let (mut world, ids) = World::of_three();
    let snapshot = world.snapshot.clone().expect("those who join are sent one");
    let link = world.connect(ids[2], identity(Role::Coordinator, "coordinator-99"));
    world.say(link, snapshot);
    world.pass(10);
    assert!(!world.links.contains_key(&link));
}

/// It knows none of the others, and they have dropped the part of the log that it lacks.
#[test]
fn who_was_away_while_all_others_were_replaced_comes_back() {
    let (mut world, ids) = World::of_three();
    world.kill(ids[2]);
    let known = world.nodes[&FOUNDER].core.state();
    let membership = (known.revision(), known.coordinators());
    world.replace(ids[0], 0);
    for number in 0..200 {
        world.command(200 + number, OperatorCommand::RevokeToken([0; 9]));
    }
    world.replace(ids[1], 300);
    world.start_knowing(ids[2], own(3), membership);
    world.pass(2_000);
    let leader = world.leader().expect("a coordinator leads");
    let [here, there] = [ids[2], leader].map(|id| world.nodes[&id].core.state().index());
    assert_eq!(here, there);
    world.assert_agreed();
}

impl World {
    fn replace(&mut self, old: CoordinatorId, round: u64) -> CoordinatorId {
        let id = self.apply_for(10 + round);
        self.start(id, own(10 + round));
        self.pass(1_000);
        assert_eq!(self.command(100 + round, OperatorCommand::Remove(old)), Some(None));
        self.pass(1_000);
        self.kill(old);
        self.pass(1_000);
        id
    }
}

// Requests to the leader, and its knowledge of the others.
impl World {
    /// An operator sends a message to a coordinator. Returns the answers that come within this
    /// time.
    fn ask(&mut self, id: CoordinatorId, message: Message, ms: u64) -> Vec<Message> {
        let link = self.operator(id);
        self.say(link, message);
        self.pass(ms);
        self.said.remove(&link).unwrap_or_default()
    }

    /// The leader's answer to a request for another leader.
    fn transfer(&mut self, to: Option<CoordinatorId>) -> Option<Option<String>> {
        let leader = self.leader().expect("a coordinator leads");
        let id = RequestId { client: 8, number: 1 };
        let told = self.ask(leader, Message::Transfer { id, to }, 3_000);
        told.into_iter().find_map(|message| match message {
            Message::Answer { refusal, .. } => Some(refusal.map(|it| it.to_string())),
            _ => None,
        })
    }
}

#[test]
fn another_coordinator_leads_when_that_is_asked_for() {
    let (mut world, ids) = World::of_three();
    let first = world.leader().expect("a coordinator leads");
    assert_eq!(world.transfer(Some(first)), Some(None), "it does already");
    for to in ids {
        assert_eq!(world.transfer(Some(to)), Some(None));
        assert_eq!(world.leader(), Some(to));
    }
    assert_eq!(world.transfer(None), Some(None));
    assert_ne!(world.leader(), Some(ids[2]));
    let none = "there is no coordinator 99";
    assert_eq!(world.transfer(Some(CoordinatorId(99))), Some(Some(none.into())));
    let dead = ids.into_iter().find(|id| Some(*id) != world.leader()).expect("a follower");
    world.kill(dead);
    world.pass(10);
    let silent = format!("coordinator {dead} is not heard");
    assert_eq!(world.transfer(Some(dead)), Some(Some(silent)));
}

/// The answer on its first link is lost with that link.
#[test]
fn who_asks_again_for_another_leader_is_answered_where_it_asks() {
    let (mut world, ids) = World::of_three();
    let leader = world.leader().expect("a coordinator leads");
    let heir = ids.into_iter().find(|id| *id != leader).expect("a follower");
    let id = RequestId { client: 8, number: 1 };
    let links = [(); 2].map(|()| {
        let link = world.operator(leader);
        world.say(link, Message::Transfer { id, to: Some(heir) });
        link
    });
    world.pass(1_000);
    let answer = Message::Answer { id, refusal: None, run: None };
    assert!(world.said[&links[1]].contains(&answer), "{:?}", world.said[&links[1]]);
    assert_eq!(world.leader(), Some(heir));
}

#[test]
fn the_leader_tells_how_the_others_stand_and_who_is_silent() {
    let (mut world, ids) = World::of_three();
    let leader = world.leader().expect("a coordinator leads");
    let dead = ids.into_iter().find(|id| *id != leader).expect("a follower");
    world.kill(dead);
    world.pass(1_000);
    assert_eq!(
        world.command(1, OperatorCommand::RevokeToken([0; 9])).map(|_| ()),
        Some(()),
        "two agree"
    );
    let told = world.ask(leader, Message::Ask(Question::Coordinators), 100);
    let Some(Message::Reply(Reply::Coordinators { coordinators, applied, .. })) = told.last()
    else {
        panic!("not told but {told:?}");
    };
    assert_eq!(coordinators.iter().map(|it| it.view.id).collect::<Vec<_>>(), ids);
    for status in coordinators {
        let id = status.view.id;
        assert!(status.votes);
        assert_eq!(
            (status.leads, id == dead),
            (id == leader, status.silent_since_unix_ms.is_some())
        );
        assert_eq!(status.matched.expect("who leads knows") < *applied, id == dead);
    }
    assert_eq!(world.nodes[&leader].reachable(), ReachableVoters { reached: 2, all: 3 });
}

/// It believes that it leads, until it notices that no other coordinator answers.
#[test]
fn a_leader_that_is_cut_off_answers_nobody_who_reads() {
    let (mut world, ids) = World::of_three();
    let leader = world.leader().expect("a coordinator leads");
    ids.into_iter().filter(|id| *id != leader).for_each(|id| world.kill(id));
    let watch = Message::Watch { run: None, step: everstep_transport::protocol::Step(0), event: 0 };
    let told = world.ask(leader, watch, 1_000);
    let said: Vec<_> = told.iter().map(Message::name).collect();
    assert!(!said.is_empty() && said.iter().all(|name| *name == "coordinators"), "{said:?}");
    assert_eq!(world.leader(), None);
}
