//! The inputs and the outputs of a coordinator's core.

use std::net::SocketAddr;

use everstep_transport::identity::{Identity, Refusal, TokenId};
use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::reason::LinkEnd;
use everstep_transport::protocol::{
    CoordinatorId, HistoryEntry, Lineage, ManifestToWrite, Message, NodeName, RequestId, Step, Term,
};

use super::{EventRange, LinkId};
use crate::lines::{LineRecord, LinesFound};
use crate::state::{CommandEntry, LineHistory, State};

/// What happens to a coordinator.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // the core takes one at a time and keeps none
pub enum CoreInput {
    /// The shell has news.
    Shell(ShellInput),
    /// This coordinator leads from now on, once its own entry of this term has applied.
    Elected {
        /// The new term, above all earlier terms.
        term: Term,
        /// The id by which the log knows this coordinator.
        id: CoordinatorId,
    },
    /// This coordinator leads no longer, or will not lead.
    SteppedDown,
    /// A coordinator leads, perhaps this one. A term above this coordinator's own deposes it.
    Leader {
        /// The term in which that coordinator leads.
        term: Term,
        /// The leader's id. `None` while it is unknown.
        leader: Option<CoordinatorId>,
    },
    /// This coordinator led after it asked, and has applied every entry that was agreed by then.
    Confirmed {
        /// The ticket of the [`CoreEffect::Confirm`] that this answers.
        ticket: u64,
    },
    /// The replica could not find out whether this coordinator led.
    Unconfirmed {
        /// The ticket of the [`CoreEffect::Confirm`] that this answers.
        ticket: u64,
    },
    /// A snapshot replaced entries that the log no longer has, while this coordinator followed.
    Installed(Box<State>),
    /// The log has come to this entry. Before the first [`CoreInput::Elected`], the entries of a
    /// durable log are applied again.
    Applied {
        /// The entry's index, above all earlier ones.
        index: u64,
        /// The term in which the entry came into the log.
        term: Term,
        /// The entry, as all replicas apply it.
        entry: CommandEntry,
    },
    /// Another coordinator has sent a page of the history that is missing here.
    HistoryPage,
    /// Time has passed. The driver gives this every [`super::CORE_TICK`].
    Tick,
}

/// What a coordinator's shell tells its core, by way of the node.
#[allow(clippy::large_enum_variant)] // the core takes one at a time and keeps none
#[derive(Clone, Debug, PartialEq)]
pub enum ShellInput {
    /// A peer has proved its identity.
    Connected {
        /// The new link to the peer.
        link: LinkId,
        /// The identity in the peer's certificate.
        identity: Identity,
        /// The address from which the peer's packets come. `None` for a reader within this process.
        address: Option<SocketAddr>,
    },
    /// A link is gone.
    Disconnected {
        /// The link that is gone.
        link: LinkId,
        /// How it ended, which tells whether the peer's process may live.
        end: LinkEnd,
    },
    /// A peer says something.
    Message {
        /// The link that the message came on.
        from: LinkId,
        /// The message, already decoded.
        message: Message,
    },
    /// Another reader reads through the shell. Once the core's knowledge may answer it,
    /// [`ShellEffect::ReadReady`] says so, with this number or a later one.
    Read(u64),
    /// This node may be admitted: the log is to count a use of the token.
    Admit {
        /// The token that the node has shown.
        token: TokenId,
        /// The name of the node.
        node: NodeName,
    },
    /// The file of metrics lines that [`ShellEffect::OpenLines`] asked for is open.
    LinesOpened {
        /// The history that the file belongs to.
        lineage: Lineage,
        /// What the file holds.
        found: LinesFound,
    },
    /// The file of metrics lines is durable up to this step.
    LinesDurable {
        /// The history that the file belongs to.
        lineage: Lineage,
        /// The newest step that was appended, or skipped, before the file became durable.
        reach: Step,
    },
}

impl From<ShellInput> for CoreInput {
    fn from(it: ShellInput) -> Self {
        Self::Shell(it)
    }
}

/// What a coordinator wants done.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // the driver drains them after every input
pub enum CoreEffect {
    /// The shell carries this out.
    Shell(ShellEffect),
    /// Bring this into the log. [`CoreInput::Applied`] tells when it is there. If the shell cannot
    /// bring it in at once, the entry waits for as long as this coordinator leads: the core does
    /// not propose it again.
    Propose(CommandEntry),
    /// Ask whether this coordinator still leads. The answer is [`CoreInput::Confirmed`] or
    /// [`CoreInput::Unconfirmed`].
    Confirm {
        /// The number of the question.
        ticket: u64,
    },
    /// An operator asks for the state of the coordinators, which their replicas know.
    Describe {
        /// The link of the operator that asks.
        to: LinkId,
    },
    /// An operator asks that another coordinator lead.
    Transfer {
        /// The link of the operator that asks.
        asked_by: LinkId,
        /// The operator's id of the request.
        id: RequestId,
        /// The next leader. `None` for the coordinator that has most of the log.
        to: Option<CoordinatorId>,
    },
}

/// What a coordinator's core wants of the shell, by way of the node.
#[derive(Clone, Debug, PartialEq)]
pub enum ShellEffect {
    /// Send a message to one peer.
    Send {
        /// The link to send it on.
        to: LinkId,
        /// The message to send.
        message: Message,
    },
    /// Send a message to many peers. It may be large, so they share one copy.
    Broadcast {
        /// The links to send it on.
        to: Vec<LinkId>,
        /// The message that all of them get.
        message: Message,
    },
    /// Open the file with the metrics lines of this run, an empty one if there is none. Cut away
    /// the lines after its rollback's step that are not of this history. Then give
    /// [`ShellInput::LinesOpened`]. Later effects on lines are about this file.
    OpenLines(LineHistory),
    /// Append these lines to the file, make them durable, then give [`ShellInput::LinesDurable`].
    /// Several of these effects may become durable at once.
    AppendLines(Vec<LineRecord>),
    /// The lines up to this step are lost: the next line is that of the step after it. The shell
    /// makes this durable as it does lines.
    SkipLines(Step),
    /// Send another coordinator [`Message::Lines`]: the consecutive lines after this step, at most
    /// [`crate::lines::PAGE`].
    TellLines {
        /// The link to the other coordinator.
        to: LinkId,
        /// The history that the lines belong to.
        lineage: Lineage,
        /// The newest step up to which the file is durable.
        reach: Step,
        /// The step before the first line.
        after: Step,
    },
    /// Send a watcher [`Message::Update`], with the consecutive lines after a step, and perhaps
    /// with events of the history file: at most [`crate::lines::PAGE`] of each.
    Update {
        /// The link to the watcher.
        to: LinkId,
        /// The step before the first line. `None` for an update without lines.
        after: Option<Step>,
        /// The events to read from the history file. `None` if the update has its events.
        in_file: Option<EventRange>,
        /// The update, without its lines.
        update: Box<Update>,
    },
    /// Send a member [`Message::WriteManifest`], with the lines that this coordinator has of the
    /// steps after `after`, up to `to_step`.
    OrderManifest {
        /// The link to the member.
        to: LinkId,
        /// The step before the first line.
        after: Step,
        /// The step of the last line.
        to_step: Step,
        /// The order, without its lines.
        order: Box<ManifestToWrite>,
    },
    /// What an entry has brought to the history, for a shell that keeps all of it. It follows from
    /// the log, and need not be durable before other effects.
    History(HistoryEntry),
    /// The core's knowledge may answer reads up to this number: it has all that was agreed when
    /// they were asked.
    ReadReady(u64),
    /// The log has spent a use of a token, or refused it.
    Admitted {
        /// The token that the node has shown.
        token: TokenId,
        /// The name of the node.
        node: NodeName,
        /// Why the node is not admitted after all. `None` if it is.
        refusal: Option<Refusal>,
    },
    /// Close a link, and tell the peer why.
    Close {
        /// The link to close.
        to: LinkId,
        /// Why, in words for the peer.
        reason: String,
    },
}

impl From<ShellEffect> for CoreEffect {
    fn from(it: ShellEffect) -> Self {
        Self::Shell(it)
    }
}
